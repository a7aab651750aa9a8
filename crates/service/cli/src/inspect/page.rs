//! `strandline inspect page`: a relation page's header, checksum, line pointers and special area.

use std::fmt::Write as _;

use pg_page::btree::{self, BTREE_SPECIAL_LEN, BtreeMeta, BtreeSpecial};
use pg_page::item::{self, ItemState};
use pg_page::{HeapTupleHeader, ItemId, Page, PageHeader, checksum, page_header};
use pg_types::{BLCKSZ, BlockNumber};
use serde_json::{Value, json};

use super::{Inspection, labelled};

/// The bytes are not a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a page has {BLCKSZ} bytes, these are {found}; give the offset of a block, not of a byte")]
pub struct NotAPage {
    /// How many bytes there are.
    pub found: usize,
}

/// Describes `bytes` as block `block` of its fork.
///
/// # Errors
/// [`NotAPage`] when there are not 8192 bytes.
pub fn page(bytes: &[u8], block: BlockNumber) -> Result<Inspection, NotAPage> {
    let page: &Page = bytes
        .try_into()
        .map_err(|_| NotAPage { found: bytes.len() })?;
    let header = PageHeader::read(page);
    let kind = Kind::of(page, &header);
    let sum = Checksum::of(page, block);
    let mut text = header_text(&header, block, &sum, &kind);
    if kind.has_items() {
        text.push_str(&items_text(page, &kind));
    }
    let json = json!({
        "block": block,
        "kind": kind.name(),
        "lsn": header.lsn,
        "checksum": sum.as_json(),
        "flags": flag_names(header.flags),
        "lower": header.lower,
        "upper": header.upper,
        "special": header.special,
        "page_size_and_version": header.page_size_and_version,
        "prune_xid": header.prune_xid,
        "sane": kind.is_empty() || header.is_sane(),
        "items": if kind.has_items() { items_json(page, &kind) } else { json!([]) },
        "special_area": kind.special_json(),
    });
    Ok(Inspection { text, json })
}

/// What the page looks like; pages do not say what they are of.
enum Kind {
    /// Every byte is zero.
    Zero,
    /// `pd_upper` is zero, something else is not.
    New,
    /// No special area: a heap page, or one of the free space or visibility map.
    Plain,
    /// A B-tree's metapage.
    BtreeMeta(BtreeMeta),
    /// A page with a special area like a B-tree's.
    Btree(BtreeSpecial),
    /// A page with another special area of this many bytes.
    Other(usize),
    /// The header is damaged, or this is an SLRU page, which has none.
    NoHeader,
}

impl Kind {
    fn of(page: &Page, header: &PageHeader) -> Kind {
        if page_header::is_zero(page) {
            return Kind::Zero;
        }
        if page_header::is_new(page) {
            return Kind::New;
        }
        if !header.is_sane() {
            return Kind::NoHeader;
        }
        let len = page_header::special_area(page).map_or(0, <[u8]>::len);
        match (len, BtreeSpecial::read(page)) {
            (0, _) => Kind::Plain,
            (_, Some(special)) if special.flags & btree::META != 0 => {
                BtreeMeta::read(page).map_or(Kind::Other(BTREE_SPECIAL_LEN), Kind::BtreeMeta)
            }
            // The last two bytes are a cycle id; other access methods keep their page id there.
            (_, Some(special)) if special.cycle_id <= MAX_BTREE_CYCLE_ID => Kind::Btree(special),
            (len, _) => Kind::Other(len),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Kind::Zero => "zero",
            Kind::New => "new",
            Kind::Plain => "plain",
            Kind::BtreeMeta(_) => "btree metapage",
            Kind::Btree(_) => "btree",
            Kind::Other(_) => "with special area",
            Kind::NoHeader => "no page header",
        }
    }

    /// Whether there is nothing to be wrong.
    const fn is_empty(&self) -> bool {
        matches!(self, Kind::Zero | Kind::New)
    }

    const fn has_items(&self) -> bool {
        matches!(self, Kind::Plain | Kind::Btree(_) | Kind::Other(_))
    }

    fn special_text(&self) -> String {
        match self {
            Kind::BtreeMeta(meta) => format!(
                "version {}, root {} on level {}, fast root {} on level {}",
                meta.version, meta.root, meta.level, meta.fast_root, meta.fast_level
            ),
            Kind::Btree(special) => format!(
                "left {}, right {}, level {}, flags {:#x}, cycle id {}",
                special.prev, special.next, special.level, special.flags, special.cycle_id
            ),
            Kind::Other(len) => format!("{len} bytes"),
            Kind::Zero | Kind::New | Kind::Plain | Kind::NoHeader => "none".to_owned(),
        }
    }

    fn special_json(&self) -> Value {
        match self {
            Kind::BtreeMeta(meta) => json!({
                "version": meta.version,
                "root": meta.root,
                "level": meta.level,
                "fast_root": meta.fast_root,
                "fast_level": meta.fast_level,
            }),
            Kind::Btree(special) => json!({
                "prev": special.prev,
                "next": special.next,
                "level": special.level,
                "flags": special.flags,
                "cycle_id": special.cycle_id,
            }),
            Kind::Other(len) => json!({ "bytes": len }),
            Kind::Zero | Kind::New | Kind::Plain | Kind::NoHeader => Value::Null,
        }
    }
}

/// `MAX_BT_CYCLE_ID`: hash, GiST, SP-GiST and BRIN pages have larger numbers in the same place.
const MAX_BTREE_CYCLE_ID: u16 = 0xFF7F;

/// What is stored, and what should be.
struct Checksum {
    stored: u16,
    computed: u16,
    new: bool,
}

impl Checksum {
    fn of(page: &Page, block: BlockNumber) -> Checksum {
        let stored = page_header::stored_checksum(page);
        Checksum {
            stored,
            computed: checksum(page, block),
            new: page_header::is_new(page),
        }
    }

    /// Zero can mean that the cluster has no checksums, which a page does not say.
    const fn verdict(&self) -> &'static str {
        match (self.new, self.stored) {
            (true, _) => "none: the page is new",
            (false, 0) => "none",
            (false, stored) if stored == self.computed => "ok",
            _ => "WRONG",
        }
    }

    fn as_json(&self) -> Value {
        let computed = if self.new {
            Value::Null
        } else {
            json!(self.computed)
        };
        json!({ "stored": self.stored, "computed": computed, "verdict": self.verdict() })
    }
}

fn header_text(header: &PageHeader, block: u32, sum: &Checksum, kind: &Kind) -> String {
    let flags = flag_names(header.flags);
    let flags = if flags.is_empty() {
        "none".to_owned()
    } else {
        flags.join(" ")
    };
    let size = header.page_size_and_version;
    let stored = format!("{:#06x} ({})", sum.stored, sum.verdict());
    let stored = if sum.verdict() == "WRONG" {
        format!("{stored}; block {block} should have {:#06x}", sum.computed)
    } else {
        stored
    };
    labelled(&[
        ("block", block.to_string()),
        ("kind", kind.name().to_owned()),
        ("LSN", header.lsn.to_string()),
        ("checksum", stored),
        ("flags", format!("{:#06x} ({flags})", header.flags)),
        (
            "lower, upper, special",
            format!("{}, {}, {}", header.lower, header.upper, header.special),
        ),
        (
            "free bytes",
            header.upper.saturating_sub(header.lower).to_string(),
        ),
        (
            "size, version",
            format!("{}, {}", size & 0xFF00, size & 0xFF),
        ),
        ("prune xid", header.prune_xid.to_string()),
        ("special area", kind.special_text()),
    ])
}

fn flag_names(flags: u16) -> Vec<&'static str> {
    let names = [
        (page_header::HAS_FREE_LINES, "HAS_FREE_LINES"),
        (page_header::PAGE_FULL, "PAGE_FULL"),
        (page_header::ALL_VISIBLE, "ALL_VISIBLE"),
        (!page_header::VALID_FLAGS, "UNKNOWN"),
    ];
    names
        .into_iter()
        .filter(|(bits, _)| flags & bits != 0)
        .map(|(_, name)| name)
        .collect()
}

/// The header of the tuple a line pointer of a page without special area points to.
fn tuple_of(page: &Page, id: ItemId, kind: &Kind) -> Option<HeapTupleHeader> {
    if !matches!(kind, Kind::Plain) {
        return None;
    }
    HeapTupleHeader::read(item::item_bytes(page, id)?)
}

const fn state_name(state: ItemState) -> &'static str {
    match state {
        ItemState::Unused => "unused",
        ItemState::Normal => "normal",
        ItemState::Redirect => "redirect",
        ItemState::Dead => "dead",
    }
}

fn items_text(page: &Page, kind: &Kind) -> String {
    let mut text = format!(
        "\n{:>5} {:<8} {:>6} {:>6}",
        "item", "state", "offset", "length"
    );
    if matches!(kind, Kind::Plain) {
        let _ = write!(
            text,
            " {:>10} {:>10} {:>14} infomask",
            "xmin", "xmax", "ctid"
        );
    }
    text.push('\n');
    for (number, id) in item::items(page) {
        let state = state_name(id.state());
        let _ = write!(
            text,
            "{number:>5} {state:<8} {:>6} {:>6}",
            id.offset(),
            id.len()
        );
        if let Some(tuple) = tuple_of(page, id, kind) {
            let ctid = format!("({},{})", tuple.ctid_block, tuple.ctid_offset);
            let _ = write!(
                text,
                " {:>10} {:>10} {ctid:>14} {:04x} {:04x}",
                tuple.xmin, tuple.xmax, tuple.infomask, tuple.infomask2
            );
        }
        text.push('\n');
    }
    text
}

fn items_json(page: &Page, kind: &Kind) -> Value {
    let describe = |(number, id): (u16, ItemId)| {
        let tuple = tuple_of(page, id, kind).map(|tuple| {
            json!({
                "xmin": tuple.xmin,
                "xmax": tuple.xmax,
                "command_id": tuple.command_id,
                "ctid": [tuple.ctid_block, u32::from(tuple.ctid_offset)],
                "infomask": tuple.infomask,
                "infomask2": tuple.infomask2,
                "header_len": tuple.header_len,
            })
        });
        json!({
            "number": number,
            "state": state_name(id.state()),
            "offset": id.offset(),
            "length": id.len(),
            "tuple": tuple,
        })
    };
    item::items(page).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap page with one tuple and one redirect.
    fn heap_page() -> Page {
        let mut page = [0; BLCKSZ];
        page_header::init(&mut page, 0);
        page_header::set_lower(&mut page, 32);
        page_header::set_upper(&mut page, 8160);
        page[24..28].copy_from_slice(&ItemId::new(8160, ItemState::Normal, 28).0.to_le_bytes());
        page[28..32].copy_from_slice(&ItemId::new(1, ItemState::Redirect, 0).0.to_le_bytes());
        page[8160] = 77;
        pg_page::set_checksum(&mut page, 3);
        page
    }

    #[test]
    fn a_heap_page_shows_its_tuples() {
        let found = page(&heap_page(), 3).unwrap();
        assert_eq!(found.json["kind"], "plain");
        assert_eq!(found.json["checksum"]["verdict"], "ok");
        assert_eq!(found.json["items"][0]["tuple"]["xmin"], 77);
        assert_eq!(found.json["items"][1]["state"], "redirect");
        assert_eq!(found.json["items"][1]["tuple"], Value::Null);
        assert!(found.text.contains("redirect"), "{}", found.text);
    }

    #[test]
    fn a_wrong_checksum_is_said_aloud() {
        let found = page(&heap_page(), 4).unwrap();
        assert_eq!(found.json["checksum"]["verdict"], "WRONG");
        assert!(found.text.contains("WRONG"), "{}", found.text);
    }

    #[test]
    fn pages_are_told_apart() {
        let kind = |page: &Page| super::page(page, 0).unwrap().json["kind"].clone();
        let mut other = [0; BLCKSZ];
        assert_eq!(kind(&other), "zero");
        other[0] = 1;
        assert_eq!(kind(&other), "new");
        page_header::init(&mut other, 16);
        other[8188] = 1;
        assert_eq!(kind(&other), "btree");
        other[8190..].copy_from_slice(&0xFF81u16.to_le_bytes());
        assert_eq!(kind(&other), "with special area");
        assert_eq!(kind(&[0x55; BLCKSZ]), "no page header");
        assert_eq!(super::page(&[0; 10], 0), Err(NotAPage { found: 10 }));
    }
}
