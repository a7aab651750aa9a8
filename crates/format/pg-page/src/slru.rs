//! Where the SLRUs keep what belongs to a transaction or multixact, and how their files are named.
//!
//! Page numbers here are those of the 32-bit spaces of 14 to 18. In these majors every SLRU that is
//! stored has short file names (`%04X` of the segment number, five digits when it needs them);
//! only `pg_notify`, which is not, has long ones from 17 on. (64-bit member offsets with long
//! names came after 18.)

use pg_types::{BLCKSZ, BlockNumber, Slru, Xid};

use crate::Page;
use crate::layout::{u16_at, u32_at, u64_at};

/// Transactions on a page of `pg_xact` (`CLOG_XACTS_PER_PAGE`): two bits each.
pub const CLOG_XACTS_PER_PAGE: u32 = (BLCKSZ * 4) as u32;

/// Multixacts on a page of `pg_multixact/offsets` (`MULTIXACT_OFFSETS_PER_PAGE`): a u32 each.
pub const MULTIXACT_OFFSETS_PER_PAGE: u32 = (BLCKSZ / 4) as u32;

/// Members of a group: four flag bytes, then four transaction ids.
const MEMBERS_PER_GROUP: u32 = 4;

/// Bytes of a group.
const MEMBER_GROUP_LEN: u32 = 20;

/// Members on a page of `pg_multixact/members` (`MULTIXACT_MEMBERS_PER_PAGE`): 409 groups; the
/// last 12 bytes stay empty.
pub const MULTIXACT_MEMBERS_PER_PAGE: u32 = BLCKSZ as u32 / MEMBER_GROUP_LEN * MEMBERS_PER_GROUP;

/// Bytes of an entry of `pg_commit_ts`: a timestamp and the origin's number, unaligned.
pub const COMMIT_TS_ENTRY_LEN: usize = 10;

/// Transactions on a page of `pg_commit_ts` (`COMMIT_TS_XACTS_PER_PAGE`); two bytes stay empty.
pub const COMMIT_TS_XACTS_PER_PAGE: u32 = (BLCKSZ / COMMIT_TS_ENTRY_LEN) as u32;

/// Outcome of a transaction as `pg_xact` keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum XidStatus {
    /// Running, or crashed while running.
    InProgress = 0,
    /// Committed.
    Committed = 1,
    /// Rolled back.
    Aborted = 2,
    /// A subtransaction whose parent is about to commit.
    SubCommitted = 3,
}

/// Where `pg_xact` keeps a transaction's two bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClogPosition {
    /// Page of the SLRU.
    pub page: BlockNumber,
    /// Byte in the page.
    pub byte: u16,
    /// How far the bits stand from the low end of the byte.
    pub shift: u8,
}

impl ClogPosition {
    /// Position of `xid`.
    #[must_use]
    pub const fn of(xid: Xid) -> ClogPosition {
        ClogPosition {
            page: xid / CLOG_XACTS_PER_PAGE,
            byte: (xid % CLOG_XACTS_PER_PAGE / 4) as u16,
            shift: (xid % 4 * 2) as u8,
        }
    }

    /// The status in `page`, which must be the one this position names.
    #[must_use]
    pub fn status(self, page: &Page) -> XidStatus {
        match page
            .get(usize::from(self.byte))
            .map_or(0, |byte| byte >> self.shift & 3)
        {
            0 => XidStatus::InProgress,
            1 => XidStatus::Committed,
            2 => XidStatus::Aborted,
            _ => XidStatus::SubCommitted,
        }
    }

    /// Sets the status in `page`.
    pub fn set_status(self, page: &mut Page, status: XidStatus) {
        if let Some(byte) = page.get_mut(usize::from(self.byte)) {
            *byte = *byte & !(3 << self.shift) | (status as u8) << self.shift;
        }
    }
}

/// Where `pg_multixact/offsets` keeps the number of a multixact's first member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiXactOffsetPosition {
    /// Page of the SLRU.
    pub page: BlockNumber,
    /// Byte in the page where the u32 begins.
    pub byte: u16,
}

impl MultiXactOffsetPosition {
    /// Position of multixact `multi`.
    #[must_use]
    pub const fn of(multi: u32) -> MultiXactOffsetPosition {
        MultiXactOffsetPosition {
            page: multi / MULTIXACT_OFFSETS_PER_PAGE,
            byte: (multi % MULTIXACT_OFFSETS_PER_PAGE * 4) as u16,
        }
    }

    /// The offset in `page`; zero when it was never set.
    #[must_use]
    pub fn offset(self, page: &Page) -> u32 {
        u32_at(page, usize::from(self.byte)).unwrap_or(0)
    }

    /// Sets the offset in `page`.
    pub fn set_offset(self, page: &mut Page, offset: u32) {
        put(page, usize::from(self.byte), offset.to_le_bytes());
    }
}

/// Where `pg_multixact/members` keeps a member: its status in one byte, its transaction id in
/// another place of the same group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiXactMemberPosition {
    /// Page of the SLRU.
    pub page: BlockNumber,
    /// Byte in the page that holds the status.
    pub status_byte: u16,
    /// Byte in the page where the transaction id begins.
    pub xid_byte: u16,
}

impl MultiXactMemberPosition {
    /// Position of member number `offset`.
    #[must_use]
    pub const fn of(offset: u32) -> MultiXactMemberPosition {
        let within = offset % MULTIXACT_MEMBERS_PER_PAGE;
        let group = within / MEMBERS_PER_GROUP * MEMBER_GROUP_LEN;
        let member = within % MEMBERS_PER_GROUP;
        MultiXactMemberPosition {
            page: offset / MULTIXACT_MEMBERS_PER_PAGE,
            status_byte: (group + member) as u16,
            xid_byte: (group + MEMBERS_PER_GROUP + member * 4) as u16,
        }
    }

    /// Transaction id and status (`MultiXactStatus`) in `page`.
    #[must_use]
    pub fn member(self, page: &Page) -> (Xid, u8) {
        let xid = u32_at(page, usize::from(self.xid_byte)).unwrap_or(0);
        (
            xid,
            page.get(usize::from(self.status_byte))
                .copied()
                .unwrap_or(0),
        )
    }

    /// Sets transaction id and status in `page`.
    pub fn set_member(self, page: &mut Page, xid: Xid, status: u8) {
        put(page, usize::from(self.xid_byte), xid.to_le_bytes());
        put(page, usize::from(self.status_byte), [status]);
    }
}

/// Where `pg_commit_ts` keeps a transaction's commit time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitTsPosition {
    /// Page of the SLRU.
    pub page: BlockNumber,
    /// Byte in the page where the entry begins.
    pub byte: u16,
}

impl CommitTsPosition {
    /// Position of `xid`.
    #[must_use]
    pub const fn of(xid: Xid) -> CommitTsPosition {
        CommitTsPosition {
            page: xid / COMMIT_TS_XACTS_PER_PAGE,
            byte: (xid % COMMIT_TS_XACTS_PER_PAGE * COMMIT_TS_ENTRY_LEN as u32) as u16,
        }
    }

    /// Commit time (microseconds since 2000) and replication origin in `page`.
    #[must_use]
    pub fn entry(self, page: &Page) -> (i64, u16) {
        let at = usize::from(self.byte);
        (
            u64_at(page, at).unwrap_or(0).cast_signed(),
            u16_at(page, at + 8).unwrap_or(0),
        )
    }

    /// Sets commit time and replication origin in `page`.
    pub fn set_entry(self, page: &mut Page, time: i64, origin: u16) {
        put(page, usize::from(self.byte), time.to_le_bytes());
        put(page, usize::from(self.byte) + 8, origin.to_le_bytes());
    }
}

/// Positions lie inside of the page by construction; anything else is left alone.
fn put<const N: usize>(page: &mut Page, at: usize, value: [u8; N]) {
    if let Some(to) = page.get_mut(at..at + N) {
        to.copy_from_slice(&value);
    }
}

/// The last page an SLRU can have: the one that keeps id (or member) `u32::MAX`.
#[must_use]
pub const fn last_page(slru: Slru) -> BlockNumber {
    u32::MAX / entries_per_page(slru)
}

/// How many ids (or members) a page of `slru` keeps.
#[must_use]
pub const fn entries_per_page(slru: Slru) -> u32 {
    match slru {
        Slru::Clog => CLOG_XACTS_PER_PAGE,
        Slru::MultiXactOffsets => MULTIXACT_OFFSETS_PER_PAGE,
        Slru::MultiXactMembers => MULTIXACT_MEMBERS_PER_PAGE,
        Slru::CommitTs => COMMIT_TS_XACTS_PER_PAGE,
    }
}

/// Name of segment file `segment`: at least four upper-case hexadecimal digits.
#[must_use]
pub fn segment_file_name(segment: u32) -> String {
    format!("{segment:04X}")
}

/// Name of the segment file with page `page`, and the page's byte offset in it.
#[must_use]
pub fn page_location(page: BlockNumber) -> (String, u64) {
    let offset = u64::from(page % Slru::PAGES_PER_SEGMENT) * BLCKSZ as u64;
    (segment_file_name(page / Slru::PAGES_PER_SEGMENT), offset)
}

/// Segment number of a file name; `None` when PostgreSQL would not have named a segment so.
#[must_use]
pub fn parse_segment_file_name(name: &str) -> Option<u32> {
    let segment = u32::from_str_radix(name, 16).ok()?;
    (segment_file_name(segment) == name).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_as_many_entries_as_postgresql_puts_there() {
        assert_eq!(CLOG_XACTS_PER_PAGE, 32_768);
        assert_eq!(MULTIXACT_OFFSETS_PER_PAGE, 2048);
        assert_eq!(MULTIXACT_MEMBERS_PER_PAGE, 1636);
        assert_eq!(COMMIT_TS_XACTS_PER_PAGE, 819);
        assert_eq!(last_page(Slru::Clog), 131_071);
        assert_eq!(
            segment_file_name(last_page(Slru::MultiXactMembers) / 32),
            "14078"
        );
    }

    #[test]
    fn positions_at_the_borders_of_pages() {
        assert_eq!(
            ClogPosition::of(5),
            ClogPosition {
                page: 0,
                byte: 1,
                shift: 2
            }
        );
        assert_eq!(
            ClogPosition::of(32_767),
            ClogPosition {
                page: 0,
                byte: 8191,
                shift: 6
            }
        );
        assert_eq!(
            ClogPosition::of(32_768),
            ClogPosition {
                page: 1,
                byte: 0,
                shift: 0
            }
        );
        let offset = MultiXactOffsetPosition::of;
        assert_eq!(
            offset(2047),
            MultiXactOffsetPosition {
                page: 0,
                byte: 8188
            }
        );
        assert_eq!(offset(2048), MultiXactOffsetPosition { page: 1, byte: 0 });
        let member = MultiXactMemberPosition::of;
        let position = |page, status_byte, xid_byte| MultiXactMemberPosition {
            page,
            status_byte,
            xid_byte,
        };
        assert_eq!(member(0), position(0, 0, 4));
        assert_eq!(member(3), position(0, 3, 16));
        assert_eq!(member(4), position(0, 20, 24));
        assert_eq!(member(1635), position(0, 8163, 8176));
        assert_eq!(member(1636), position(1, 0, 4));
        assert_eq!(
            CommitTsPosition::of(818),
            CommitTsPosition {
                page: 0,
                byte: 8180
            }
        );
        assert_eq!(
            CommitTsPosition::of(819),
            CommitTsPosition { page: 1, byte: 0 }
        );
    }

    #[test]
    fn entries_do_not_touch_their_neighbours() {
        let mut page = [0xFF; BLCKSZ];
        ClogPosition::of(2).set_status(&mut page, XidStatus::Aborted);
        assert_eq!(page[0], 0b1110_1111);
        assert_eq!(ClogPosition::of(2).status(&page), XidStatus::Aborted);
        assert_eq!(ClogPosition::of(1).status(&page), XidStatus::SubCommitted);
        let mut page = [0; BLCKSZ];
        for number in 0..MULTIXACT_MEMBERS_PER_PAGE {
            MultiXactMemberPosition::of(number).set_member(
                &mut page,
                number + 7,
                (number % 6) as u8,
            );
        }
        for number in 0..MULTIXACT_MEMBERS_PER_PAGE {
            let member = MultiXactMemberPosition::of(number).member(&page);
            assert_eq!(member, (number + 7, (number % 6) as u8));
        }
        assert_eq!(page[8180..], [0; 12]);
        let mut page = [0; BLCKSZ];
        for xid in 0..COMMIT_TS_XACTS_PER_PAGE {
            CommitTsPosition::of(xid).set_entry(&mut page, i64::from(xid) - 5, xid as u16);
        }
        for xid in 0..COMMIT_TS_XACTS_PER_PAGE {
            assert_eq!(
                CommitTsPosition::of(xid).entry(&page),
                (i64::from(xid) - 5, xid as u16)
            );
        }
        let mut page = [0; BLCKSZ];
        MultiXactOffsetPosition::of(2047).set_offset(&mut page, 0x0403_0201);
        assert_eq!(page[8188..], [1, 2, 3, 4]);
        assert_eq!(MultiXactOffsetPosition::of(2047).offset(&page), 0x0403_0201);
    }

    #[test]
    fn file_names_lead_back_to_their_segment() {
        assert_eq!(page_location(0), ("0000".to_owned(), 0));
        assert_eq!(page_location(33), ("0001".to_owned(), 8192));
        for segment in [0, 0xFFF, 0xFFFF, 0x1_4078] {
            assert_eq!(
                parse_segment_file_name(&segment_file_name(segment)),
                Some(segment)
            );
        }
        for bad in ["", "000", "000a", "00000", "+001", "0000.tmp"] {
            assert_eq!(parse_segment_file_name(bad), None, "{bad}");
        }
    }
}
