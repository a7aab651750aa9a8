//! Which pages of an SLRU exist: a range on a circle.
//!
//! Page numbers wrap around because the ids behind them do, so "first to last" may pass the end. Which
//! of two pages is the earlier one is decided by the shorter way round, as PostgreSQL decides it for
//! the ids themselves (traps 13 and 14 of the facts).

use pg_page::slru::last_page;
use pg_types::{BlockNumber, Slru};

use crate::SlruRange;

/// Pages `first` to `last`, both included, going up and round the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlruExtent {
    /// First page.
    pub first: BlockNumber,
    /// Last page; before `first` when the range passes the end.
    pub last: BlockNumber,
}

/// Pages from `from` up and round to `to`.
fn distance(slru: Slru, from: BlockNumber, to: BlockNumber) -> u32 {
    if to >= from {
        to - from
    } else {
        to.saturating_add(last_page(slru) + 1 - from.min(last_page(slru)))
    }
}

impl SlruExtent {
    /// Whether `page` is in the range.
    #[must_use]
    pub fn contains(&self, slru: Slru, page: BlockNumber) -> bool {
        distance(slru, self.first, page) <= distance(slru, self.first, self.last)
    }

    /// The range with `page` in it; unchanged when it is, or when the page lies before the range (it
    /// has been truncated away).
    #[must_use]
    pub fn including(self, slru: Slru, page: BlockNumber) -> SlruExtent {
        if self.contains(slru, page) || distance(slru, self.last, page) > last_page(slru) / 2 {
            self
        } else {
            SlruExtent {
                first: self.first,
                last: page,
            }
        }
    }

    /// The range without the segments that lie wholly before `page`: PostgreSQL truncates an SLRU by
    /// whole segment files. Unchanged when `page` is not ahead of the range's begin; when it is
    /// beyond the end, only its segment's pages up to it are left.
    #[must_use]
    pub fn truncated(self, slru: Slru, page: BlockNumber) -> SlruExtent {
        let segment = page - page % Slru::PAGES_PER_SEGMENT;
        if self.contains(slru, segment) {
            SlruExtent {
                first: segment,
                last: self.last,
            }
        } else if distance(slru, self.last, segment) <= last_page(slru) / 2 {
            SlruExtent {
                first: segment,
                last: page,
            }
        } else {
            self
        }
    }

    /// As ranges that do not pass the end.
    pub(crate) fn ranges(&self, slru: Slru) -> impl Iterator<Item = SlruRange> {
        let wraps = self.last < self.first;
        let head = SlruRange {
            slru,
            first: self.first,
            last: if wraps { last_page(slru) } else { self.last },
        };
        let tail = wraps.then_some(SlruRange {
            slru,
            first: 0,
            last: self.last,
        });
        std::iter::once(head).chain(tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_14_a_range_grows_and_is_cut_across_the_end() {
        let slru = Slru::Clog;
        let end = last_page(slru);
        assert_eq!(end, 131_071);
        let mut extent = SlruExtent {
            first: end - 40,
            last: end,
        };
        extent = extent.including(slru, 0).including(slru, 1);
        assert_eq!(
            extent,
            SlruExtent {
                first: end - 40,
                last: 1
            }
        );
        assert!(extent.contains(slru, end) && extent.contains(slru, 0));
        assert!(!extent.contains(slru, 2) && !extent.contains(slru, end - 41));
        let ranges: Vec<_> = extent
            .ranges(slru)
            .map(|range| (range.first, range.last))
            .collect();
        assert_eq!(ranges, [(end - 40, end), (0, 1)]);
        // 131040 begins the last segment.
        assert_eq!(
            extent.truncated(slru, end - 3),
            SlruExtent {
                first: end - 31,
                last: 1
            }
        );
        assert_eq!(extent.truncated(slru, 1), SlruExtent { first: 0, last: 1 });
    }

    #[test]
    fn truncation_keeps_whole_segments_and_never_goes_back() {
        let slru = Slru::MultiXactOffsets;
        let extent = SlruExtent {
            first: 32,
            last: 100,
        };
        assert_eq!(extent.truncated(slru, 63), extent);
        assert_eq!(
            extent.truncated(slru, 64),
            SlruExtent {
                first: 64,
                last: 100
            }
        );
        assert_eq!(extent.truncated(slru, 5), extent);
        assert_eq!(
            extent.truncated(slru, 200),
            SlruExtent {
                first: 192,
                last: 200
            }
        );
    }

    #[test]
    fn a_page_before_the_range_does_not_come_back() {
        let extent = SlruExtent {
            first: 10,
            last: 12,
        };
        assert_eq!(extent.including(Slru::Clog, 9), extent);
        assert_eq!(
            extent.including(Slru::Clog, 13),
            SlruExtent {
                first: 10,
                last: 13
            }
        );
    }
}
