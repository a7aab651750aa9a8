//! What PostgreSQL ignores when it compares a page with its replayed copy (`rm_mask` of each resource
//! manager, `access/common/bufmask.c`).

use pg_page::Page;
use pg_page::page_header::{lower, upper};
use pg_types::{BlockNumber, ForkNumber};

/// What kind of relation a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Heap,
    Sequence,
    Btree,
    Hash,
    Gin,
    Gist,
    Spgist,
    Brin,
}

fn u16_at(page: &Page, at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn put_u16(page: &mut Page, at: usize, value: u16) {
    page[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn lsn_and_checksum(page: &mut Page) {
    page[..10].fill(0);
}

/// Flags, the oldest prunable transaction.
fn hints(page: &mut Page) {
    page[10] &= !7;
    page[20..24].fill(0);
}

fn hole(page: &mut Page) {
    let (lower, upper) = (usize::from(lower(page)), usize::from(upper(page)));
    if (24..=upper).contains(&lower) && upper <= page.len() {
        page[lower..upper].fill(0);
    }
}

fn items(page: &Page) -> impl Iterator<Item = (usize, u32)> + use<> {
    let count = usize::from(lower(page)).saturating_sub(24) / 4;
    let items: Vec<(usize, u32)> = (0..count)
        .map(|index| 24 + 4 * index)
        .map(|at| {
            (
                at,
                u32::from(u16_at(page, at)) | u32::from(u16_at(page, at + 2)) << 16,
            )
        })
        .collect();
    items.into_iter()
}

fn item_flags(page: &mut Page) {
    for (at, item) in items(page) {
        if item >> 15 & 3 != 0 {
            let item = item & !(3 << 15);
            page[at..at + 4].copy_from_slice(&item.to_le_bytes());
        }
    }
}

fn heap_tuples(page: &mut Page) {
    for (_, item) in items(page) {
        let (offset, flags, len) = (
            (item & 0x7FFF) as usize,
            item >> 15 & 3,
            (item >> 17) as usize,
        );
        if flags == 1 {
            let infomask = u16_at(page, offset + 20);
            let frozen = infomask & 0x0300 == 0x0300;
            put_u16(
                page,
                offset + 20,
                infomask & if frozen { !0x0C00 } else { !0xFFF0 },
            );
            page[offset + 8..offset + 12].fill(0);
            if u16_at(page, offset + 16) == 0xFFFE {
                page[offset + 12..offset + 18].fill(0);
            }
        }
        if len > 0 {
            page[offset + len..(offset + len).next_multiple_of(8)].fill(0);
        }
    }
}

/// Clears what may differ.
pub(super) fn mask(page: &mut Page, kind: Kind, fork: ForkNumber, block: BlockNumber) {
    lsn_and_checksum(page);
    // Stock masks hide the bits of map pages; here they are compared.
    if fork == ForkNumber::Vm || upper(page) == 0 {
        return;
    }
    hints(page);
    let special = usize::from(u16_at(page, 16));
    match kind {
        Kind::Heap => {
            hole(page);
            heap_tuples(page);
        }
        Kind::Sequence => {
            hole(page);
            // The last value moves on between log records.
            page[8136..8184].fill(0);
        }
        Kind::Btree => {
            hole(page);
            let flags = u16_at(page, special + 12);
            if flags & 1 != 0 {
                item_flags(page);
            }
            put_u16(page, special + 12, flags & !0x60);
            put_u16(page, special + 14, 0);
        }
        Kind::Hash => {
            hole(page);
            let flags = u16_at(page, special + 12);
            match flags & 0xF {
                0 => page[10..].fill(0),
                1 | 2 => item_flags(page),
                _ => {}
            }
            if flags & 0xF != 0 {
                put_u16(page, special + 12, flags & !0x80);
            }
        }
        Kind::Gin => {
            if u16_at(page, special + 6) & 4 != 0 {
                page[10..].fill(0);
            } else if lower(page) > 24 {
                hole(page);
            }
        }
        Kind::Gist => {
            hole(page);
            page[special..special + 8].fill(0);
            let flags = u16_at(page, special + 12);
            if flags & 1 != 0 {
                item_flags(page);
            }
            put_u16(page, special + 12, (flags | 0x08) & !0x10);
        }
        // Remembers pages with free space, unlogged, behind its magic number.
        Kind::Spgist if block == 0 => page[28..].fill(0),
        Kind::Spgist => {
            if lower(page) >= 24 {
                hole(page);
            }
        }
        Kind::Brin => {
            let kind = u16_at(page, special + 6);
            if kind == 0xF093 || kind == 0xF091 && lower(page) > 24 {
                hole(page);
            }
            let flags = u16_at(page, special + 4);
            put_u16(page, special + 4, flags & !1);
        }
    }
}
