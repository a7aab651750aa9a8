//! The 24-byte header of every relation page (`PageHeaderData`, `storage/bufpage.h`).
//!
//! Layout: LSN as two halves @0 (high) and @4 (low), checksum u16@8, flags u16@10, lower u16@12,
//! upper u16@14, special u16@16, page size and layout version u16@18, prune xid u32@20; line
//! pointers follow.

use pg_types::{BLCKSZ, Lsn, Xid};

use crate::Page;
use crate::layout::{field, set_field};

/// Bytes of the header, where the line pointers begin (`SizeOfPageHeaderData`).
pub const PAGE_HEADER_LEN: usize = 24;

/// `pd_pagesize_version` of every page: 8192 bytes, layout version 4.
pub const PAGE_SIZE_AND_VERSION: u16 = 0x2004;

/// `PD_HAS_FREE_LINES`: there may be unused line pointers.
pub const HAS_FREE_LINES: u16 = 0x0001;
/// `PD_PAGE_FULL`: an update found no room.
pub const PAGE_FULL: u16 = 0x0002;
/// `PD_ALL_VISIBLE`: every tuple is visible to everyone.
pub const ALL_VISIBLE: u16 = 0x0004;
/// Every flag bit that PostgreSQL knows (`PD_VALID_FLAG_BITS`).
pub const VALID_FLAGS: u16 = 0x0007;

/// The header's fields, as they stand in the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// End of the record that changed the page last (`pd_lsn`).
    pub lsn: Lsn,
    /// Stored checksum, zero when the cluster has none.
    pub checksum: u16,
    /// Flag bits, see [`VALID_FLAGS`].
    pub flags: u16,
    /// End of the line pointers.
    pub lower: u16,
    /// Start of the tuples; zero marks a page that was never initialised.
    pub upper: u16,
    /// Start of the special area, which reaches to the end of the page.
    pub special: u16,
    /// Page size in the high byte, layout version in the low one.
    pub page_size_and_version: u16,
    /// Oldest transaction id worth pruning for, or zero.
    pub prune_xid: Xid,
}

impl PageHeader {
    /// Reads the header of `page`.
    #[must_use]
    pub fn read(page: &Page) -> PageHeader {
        PageHeader {
            lsn: lsn(page),
            checksum: stored_checksum(page),
            flags: flags(page),
            lower: lower(page),
            upper: upper(page),
            special: special(page),
            page_size_and_version: u16::from_le_bytes(field::<18, _, _>(page)),
            prune_xid: prune_xid(page),
        }
    }

    /// Whether the offsets are ordered and inside the page and size, version and flags are known:
    /// what PostgreSQL asks of a page it reads (`PageIsVerifiedExtended`), new pages excepted.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        self.page_size_and_version == PAGE_SIZE_AND_VERSION
            && self.flags & !VALID_FLAGS == 0
            && usize::from(self.lower) >= PAGE_HEADER_LEN
            && self.lower <= self.upper
            && self.upper <= self.special
            && usize::from(self.special) <= BLCKSZ
            && self.special.is_multiple_of(8)
    }
}

/// `pd_lsn`: end of the record that changed the page last.
#[must_use]
pub fn lsn(page: &Page) -> Lsn {
    let high = u32::from_le_bytes(field::<0, _, _>(page));
    let low = u32::from_le_bytes(field::<4, _, _>(page));
    Lsn(u64::from(high) << 32 | u64::from(low))
}

/// Sets `pd_lsn`.
pub fn set_lsn(page: &mut Page, lsn: Lsn) {
    // The high half stands first: rotated, the little-endian value has that order.
    set_field::<0, _, _>(page, lsn.0.rotate_left(32).to_le_bytes());
}

/// `pd_checksum` as stored.
#[must_use]
pub fn stored_checksum(page: &Page) -> u16 {
    u16::from_le_bytes(field::<8, _, _>(page))
}

/// Sets `pd_checksum`.
pub fn set_stored_checksum(page: &mut Page, checksum: u16) {
    set_field::<8, _, _>(page, checksum.to_le_bytes());
}

/// `pd_flags`.
#[must_use]
pub fn flags(page: &Page) -> u16 {
    u16::from_le_bytes(field::<10, _, _>(page))
}

/// Sets `pd_flags`.
pub fn set_flags(page: &mut Page, flags: u16) {
    set_field::<10, _, _>(page, flags.to_le_bytes());
}

/// `pd_lower`: end of the line pointers.
#[must_use]
pub fn lower(page: &Page) -> u16 {
    u16::from_le_bytes(field::<12, _, _>(page))
}

/// Sets `pd_lower`.
pub fn set_lower(page: &mut Page, lower: u16) {
    set_field::<12, _, _>(page, lower.to_le_bytes());
}

/// `pd_upper`: start of the tuples.
#[must_use]
pub fn upper(page: &Page) -> u16 {
    u16::from_le_bytes(field::<14, _, _>(page))
}

/// Sets `pd_upper`.
pub fn set_upper(page: &mut Page, upper: u16) {
    set_field::<14, _, _>(page, upper.to_le_bytes());
}

/// `pd_special`: start of the special area.
#[must_use]
pub fn special(page: &Page) -> u16 {
    u16::from_le_bytes(field::<16, _, _>(page))
}

/// `pd_prune_xid`.
#[must_use]
pub fn prune_xid(page: &Page) -> Xid {
    u32::from_le_bytes(field::<20, _, _>(page))
}

/// Sets `pd_prune_xid`.
pub fn set_prune_xid(page: &mut Page, xid: Xid) {
    set_field::<20, _, _>(page, xid.to_le_bytes());
}

/// Whether the page was never initialised (`PageIsNew`): `pd_upper` is zero.
#[must_use]
pub fn is_new(page: &Page) -> bool {
    upper(page) == 0
}

/// Whether every byte is zero: a page that exists but that nothing was ever written to.
#[must_use]
pub fn is_zero(page: &Page) -> bool {
    page.iter().fold(0, |seen, byte| seen | byte) == 0
}

/// The special area: what stands behind `pd_special`; `None` when that lies outside of the page.
#[must_use]
pub fn special_area(page: &Page) -> Option<&[u8]> {
    page.get(usize::from(special(page))..)
}

/// Makes `page` an empty page whose special area has `special_len` bytes, rounded up to eight
/// (`PageInit`); lengths that do not fit behind the header are cut to what does.
pub fn init(page: &mut Page, special_len: u16) {
    *page = [0; BLCKSZ];
    let room = (BLCKSZ - PAGE_HEADER_LEN) as u16;
    let special = BLCKSZ as u16 - special_len.min(room).next_multiple_of(8).min(room);
    set_lower(page, PAGE_HEADER_LEN as u16);
    set_upper(page, special);
    set_field::<16, _, _>(page, special.to_le_bytes());
    set_field::<18, _, _>(page, PAGE_SIZE_AND_VERSION.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initialised_page_has_the_bytes_postgresql_writes() {
        let mut page = [0xAA; BLCKSZ];
        init(&mut page, 16);
        set_lsn(&mut page, Lsn(0x0000_0001_0200_0003));
        assert_eq!(
            page[..PAGE_HEADER_LEN],
            [
                1, 0, 0, 0, 3, 0, 0, 2, 0, 0, 0, 0, 24, 0, 0xF0, 0x1F, 0xF0, 0x1F, 4, 0x20, 0, 0,
                0, 0
            ]
        );
        assert!(page[PAGE_HEADER_LEN..].iter().all(|byte| *byte == 0));
        let header = PageHeader::read(&page);
        assert!(header.is_sane());
        assert_eq!(header.lsn, Lsn(0x0000_0001_0200_0003));
        assert_eq!(special_area(&page).map(<[u8]>::len), Some(16));
    }

    #[test]
    fn each_setter_changes_its_own_field_only() {
        let mut page = [0; BLCKSZ];
        init(&mut page, 0);
        let mut expected = PageHeader::read(&page);
        set_flags(&mut page, ALL_VISIBLE);
        set_lower(&mut page, 28);
        set_upper(&mut page, 8000);
        set_prune_xid(&mut page, 77);
        set_stored_checksum(&mut page, 0xBEEF);
        expected.flags = ALL_VISIBLE;
        expected.lower = 28;
        expected.upper = 8000;
        expected.prune_xid = 77;
        expected.checksum = 0xBEEF;
        assert_eq!(PageHeader::read(&page), expected);
        assert!(!is_new(&page) && !is_zero(&page));
    }

    #[test]
    fn special_areas_are_rounded_up_and_cut_to_the_page() {
        let mut page = [0; BLCKSZ];
        for (asked, start) in [(0, 8192), (1, 8184), (8, 8184), (9, 8176), (u16::MAX, 24)] {
            init(&mut page, asked);
            assert_eq!(special(&page), start, "special area of {asked} bytes");
        }
    }
}
