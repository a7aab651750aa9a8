//! Where records end, for serving whole records only.
//!
//! The quorum LSN is a byte position that may lie within a record. If such a byte were served and the
//! record were then cut off by the next timeline, a reader would hold bytes that are not part of
//! history; so what is served is the last record end at or below the quorum LSN.

use std::collections::VecDeque;

use pg_types::Lsn;

/// Beyond this many every other end is forgotten: serving then moves in larger steps.
const CAPACITY: usize = 1 << 16;

/// Ends of whole records, ascending.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordEnds {
    ends: VecDeque<Lsn>,
}

impl RecordEnds {
    pub(crate) fn push(&mut self, end: Lsn) {
        if self.ends.len() >= CAPACITY {
            let mut index = 0;
            self.ends.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.ends.push_back(end);
    }

    /// The last end at or below `lsn`, if one is known; it and those before it are forgotten.
    pub(crate) fn take_up_to(&mut self, lsn: Lsn) -> Option<Lsn> {
        let mut last = None;
        while let Some(end) = self.ends.front().copied() {
            if end > lsn {
                break;
            }
            last = Some(end);
            self.ends.pop_front();
        }
        last
    }

    pub(crate) fn append(&mut self, later: &mut RecordEnds) {
        for end in later.ends.drain(..) {
            if self.ends.back().is_none_or(|last| *last < end) {
                self.push(end);
            }
        }
    }

    pub(crate) fn truncate(&mut self, at: Lsn) {
        while self.ends.back().is_some_and(|end| *end > at) {
            self.ends.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_end_not_beyond() {
        let mut ends = RecordEnds::default();
        for end in [10, 20, 30, 40] {
            ends.push(Lsn(end));
        }
        assert_eq!(ends.take_up_to(Lsn(9)), None);
        assert_eq!(ends.take_up_to(Lsn(25)), Some(Lsn(20)));
        ends.truncate(Lsn(35));
        assert_eq!(ends.take_up_to(Lsn(100)), Some(Lsn(30)));
        for end in 0..CAPACITY as u64 * 3 {
            ends.push(Lsn(end));
        }
        assert!(ends.ends.len() <= CAPACITY);
        assert_eq!(
            ends.take_up_to(Lsn::MAX),
            Some(Lsn(CAPACITY as u64 * 3 - 1))
        );
    }
}
