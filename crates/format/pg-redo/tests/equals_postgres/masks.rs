//! What of a page recovery does not reproduce: hints, and bytes that nobody reads.
//!
//! PostgreSQL's own masks (`rm_mask` of each resource manager) serve its `wal_consistency_checking`;
//! these do the same, with two differences that make them stricter: visibility-map pages are not
//! masked, although to the common mask all of them is "hole", and the all-visible flag of heap pages
//! is compared.

use pg_page::heap_tuple::{
    HEAP_TUPLE_HEADER_LEN, XMAX_COMMITTED, XMAX_INVALID, XMIN_COMMITTED, XMIN_INVALID,
};
use pg_page::page_header::{self, ALL_VISIBLE, PageHeader};
use pg_page::{ItemId, ItemState, Page, btree, item};

/// What a page is a page of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Heap,
    Btree,
    Hash,
    Gin,
    Gist,
    Spgist,
    Brin,
    Bloom,
    Sequence,
    VisibilityMap,
}

/// `page` with everything zeroed that may differ.
pub fn masked(page: &Page, kind: Kind, block: u32) -> Box<Page> {
    let mut page = Box::new(*page);
    page[..10].fill(0);
    if page_header::is_new(&page) || kind == Kind::VisibilityMap {
        return page;
    }
    match kind {
        Kind::Heap => {
            mask_hints(&mut page, ALL_VISIBLE);
            mask_hole(&mut page);
            mask_heap_tuples(&mut page, block);
        }
        Kind::Btree => {
            mask_hints(&mut page, 0);
            mask_hole(&mut page);
            mask_btree(&mut page);
        }
        Kind::Hash => mask_hash(&mut page),
        Kind::Gin => mask_gin(&mut page),
        Kind::Gist => mask_gist(&mut page),
        Kind::Spgist | Kind::Brin => {
            mask_hints(&mut page, 0);
            if kind == Kind::Spgist && block == 0 {
                // The metapage remembers pages with free space without logging it.
                page[28..8184].fill(0);
            }
            if page_header::lower(&page) >= 24 {
                mask_hole(&mut page);
            }
            if kind == Kind::Brin {
                // The evacuation flag, first of the page's last 8 bytes but two.
                page[8188..8190].fill(0);
            }
        }
        Kind::Bloom => mask_hole(&mut page),
        // The server counts on for 32 values before it logs again.
        Kind::Sequence => {
            mask_hole(&mut page);
            page[8160..8177].fill(0);
            mask_heap_tuples(&mut page, block);
        }
        Kind::VisibilityMap => {}
    }
    page
}

/// Takes out of a GiST page what a finished split of it changes: an after-image is taken before.
pub fn forget_gist_split(page: &mut Page) {
    const FOLLOW_RIGHT: u16 = 1 << 3;
    let special = usize::from(page_header::special(page));
    page[special..special + 8].fill(0);
    clear_u16(page, special + 12, FOLLOW_RIGHT);
}

fn mask_hints(page: &mut Page, keep: u16) {
    page_header::set_prune_xid(page, 0);
    let flags = page_header::flags(page);
    page_header::set_flags(page, flags & (!page_header::VALID_FLAGS | keep));
}

fn mask_hole(page: &mut Page) {
    let PageHeader {
        lower,
        upper,
        special,
        ..
    } = PageHeader::read(page);
    assert!(
        24 <= lower && lower <= upper && upper <= special && special <= 8192,
        "{:?}",
        PageHeader::read(page)
    );
    page[usize::from(lower)..usize::from(upper)].fill(0);
}

fn mask_heap_tuples(page: &mut Page, block: u32) {
    for number in 1..=item::item_count(page) {
        let id = item::item(page, number).unwrap();
        let (at, len) = (usize::from(id.offset()), usize::from(id.len()));
        if id.state() == ItemState::Normal && len >= HEAP_TUPLE_HEADER_LEN {
            let infomask = u16::from_le_bytes([page[at + 20], page[at + 21]]);
            let frozen = XMIN_COMMITTED | XMIN_INVALID;
            let hints = if infomask & frozen == frozen {
                XMAX_COMMITTED | XMAX_INVALID
            } else {
                0xFFF0
            };
            page[at + 20..at + 22].copy_from_slice(&(infomask & !hints).to_le_bytes());
            page[at + 8..at + 12].fill(0);
            if page[at + 16..at + 18] == 0xFFFEu16.to_le_bytes() {
                // A speculative token: redo has the tuple's own address.
                page[at + 12..at + 14].copy_from_slice(&((block >> 16) as u16).to_le_bytes());
                page[at + 14..at + 16].copy_from_slice(&(block as u16).to_le_bytes());
                page[at + 16..at + 18].copy_from_slice(&number.to_le_bytes());
            }
        }
        if id.state() != ItemState::Redirect && len > 0 {
            let padding = at + len..(at + len).next_multiple_of(8);
            page[padding].fill(0);
        }
    }
}

/// Zeroes the state of all line pointers in use: "dead" is a hint in indexes.
fn mask_item_states(page: &mut Page) {
    for number in 1..=item::item_count(page) {
        let id = item::item(page, number).unwrap();
        if id.state() != ItemState::Unused {
            let at = 20 + usize::from(number) * 4;
            let id = ItemId::new(id.offset(), ItemState::Unused, id.len());
            page[at..at + 4].copy_from_slice(&id.0.to_le_bytes());
        }
    }
}

fn clear_u16(page: &mut Page, at: usize, bits: u16) {
    let old = u16::from_le_bytes([page[at], page[at + 1]]);
    page[at..at + 2].copy_from_slice(&(old & !bits).to_le_bytes());
}

fn mask_btree(page: &mut Page) {
    let special = usize::from(page_header::special(page));
    let flags = u16::from_le_bytes([page[special + 12], page[special + 13]]);
    if flags & btree::LEAF != 0 {
        mask_item_states(page);
    }
    clear_u16(page, special + 12, btree::HAS_GARBAGE | btree::SPLIT_END);
    page[special + 14..special + 16].fill(0);
}

fn mask_hash(page: &mut Page) {
    const OVERFLOW: u16 = 1;
    const BUCKET: u16 = 2;
    const TYPES: u16 = 0x0F;
    const HAS_DEAD_TUPLES: u16 = 1 << 7;
    mask_hints(page, 0);
    mask_hole(page);
    let special = usize::from(page_header::special(page));
    let flags = u16::from_le_bytes([page[special + 12], page[special + 13]]);
    if flags & TYPES == 0 {
        // Unused: only its header counts.
        page[24..special].fill(0);
    } else if flags & (OVERFLOW | BUCKET) != 0 {
        mask_item_states(page);
    }
    clear_u16(page, special + 12, HAS_DEAD_TUPLES);
}

fn mask_gin(page: &mut Page) {
    const DELETED: u16 = 1 << 2;
    mask_hints(page, 0);
    let special = usize::from(page_header::special(page));
    let flags = u16::from_le_bytes([page[special + 6], page[special + 7]]);
    if flags & DELETED != 0 {
        page[24..8192].fill(0);
    } else if page_header::lower(page) > 24 {
        mask_hole(page);
    }
}

fn mask_gist(page: &mut Page) {
    const LEAF: u16 = 1;
    const HAS_GARBAGE: u16 = 1 << 2;
    mask_hints(page, 0);
    mask_hole(page);
    let special = usize::from(page_header::special(page));
    let flags = u16::from_le_bytes([page[special + 12], page[special + 13]]);
    if flags & LEAF != 0 {
        mask_item_states(page);
    }
    // Unlike in PostgreSQL's mask, sequence number and "follow right" stay: redo sets them right.
    clear_u16(page, special + 12, HAS_GARBAGE);
}
