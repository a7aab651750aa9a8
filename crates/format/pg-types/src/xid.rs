//! Transaction ids.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A 32-bit transaction id that wraps around (`TransactionId`).
pub type Xid = u32;

/// The first id that an ordinary transaction can have (`FirstNormalTransactionId`).
pub const FIRST_NORMAL_XID: Xid = 3;

/// A transaction id with its epoch, which never wraps (`FullTransactionId`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FullXid(pub u64);

impl FullXid {
    /// The 32-bit id.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low half is what is wanted"
    )]
    pub const fn xid(self) -> Xid {
        self.0 as u32
    }

    /// How often the 32-bit id has wrapped.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// An id from its parts.
    #[must_use]
    pub const fn new(epoch: u32, xid: Xid) -> FullXid {
        FullXid((epoch as u64) << 32 | xid as u64)
    }

    /// The smallest next-xid counter that is above `xid`, given that this is the counter so far:
    /// PostgreSQL's `AdvanceNextFullTransactionIdPastXid`.
    ///
    /// Ids below 3 are never assigned and leave the counter unchanged; reading zero as an id of the
    /// other half of the circle would move the epoch (trap 11 of the facts).
    #[must_use]
    pub const fn advanced_past(self, xid: Xid) -> FullXid {
        if xid < FIRST_NORMAL_XID {
            return self;
        }
        let next = self.xid();
        // Signed distance on the circle: negative when `xid` precedes the counter.
        if (xid.wrapping_sub(next) as i32) < 0 {
            return self;
        }
        let mut epoch = self.epoch();
        let mut following = xid.wrapping_add(1);
        if following < FIRST_NORMAL_XID {
            following = FIRST_NORMAL_XID;
        }
        if following < next {
            epoch = epoch.wrapping_add(1);
        }
        FullXid::new(epoch, following)
    }
}

impl fmt::Display for FullXid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch(), self.xid())
    }
}

impl fmt::Debug for FullXid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_passes_ids_and_wraps_with_its_epoch() {
        let counter = FullXid::new(0, 100);
        assert_eq!(counter.advanced_past(99), counter);
        assert_eq!(counter.advanced_past(100), FullXid::new(0, 101));
        assert_eq!(counter.advanced_past(0), counter);
        let late = FullXid::new(4, u32::MAX - 1);
        assert_eq!(late.advanced_past(u32::MAX), FullXid::new(5, 3));
        assert_eq!(late.advanced_past(10), FullXid::new(5, 11));
    }
}
