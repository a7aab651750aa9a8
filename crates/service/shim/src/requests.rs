//! Requests that were sent and not yet answered.
//!
//! **Invariant.** A reply is believed only if its request is outstanding and it echoes that request's
//! key, one of its blocks that was not answered yet, and the incarnation's LSN. Anything else means the
//! two sides disagree about the conversation, and a page taken from it could be any page.

use shim_abi::map::MapEntry;
use shim_abi::wire::{GetPages, MAX_BLOCKS, MAX_OUTSTANDING, PageReply};

#[derive(Clone, Copy)]
struct Request {
    id: u64,
    entry: u32,
    first: u32,
    count: u16,
    demanded: bool,
    answered: u128,
}

const FREE: Request = Request {
    id: 0,
    entry: 0,
    first: 0,
    count: 0,
    demanded: false,
    answered: 0,
};

impl Request {
    fn is_busy(&self) -> bool {
        self.id != 0
    }

    fn awaits(&self, entry: u32, block: u32) -> bool {
        self.is_busy()
            && self.entry == entry
            && block
                .checked_sub(self.first)
                .is_some_and(|bit| bit < u32::from(self.count) && self.answered & (1 << bit) == 0)
    }
}

/// The outstanding requests of a connection.
pub struct Requests {
    slots: [Request; MAX_OUTSTANDING],
    next_id: u64,
    /// Pages that read-ahead still awaits.
    pub ahead: u32,
}

/// What a believable reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The entry.
    pub entry: u32,
    /// Whether somebody waits for it, rather than read-ahead.
    pub demanded: bool,
}

impl Requests {
    /// Nothing outstanding.
    #[must_use]
    pub const fn new() -> Requests {
        Requests {
            slots: [FREE; MAX_OUTSTANDING],
            next_id: 0,
            ahead: 0,
        }
    }

    /// Forgets everything: the connection is gone. Ids go on, so a late reply never matches.
    pub fn clear(&mut self) {
        self.slots = [FREE; MAX_OUTSTANDING];
        self.ahead = 0;
    }

    /// Whether a reply for the block is on its way.
    #[must_use]
    pub fn awaits(&self, entry: u32, block: u32) -> bool {
        self.slots
            .iter()
            .any(|request| request.awaits(entry, block))
    }

    /// Requests that may still be sent.
    #[must_use]
    pub fn free(&self) -> usize {
        self.slots
            .iter()
            .filter(|request| !request.is_busy())
            .count()
    }

    /// Whether anything is outstanding.
    #[must_use]
    pub fn any(&self) -> bool {
        self.slots.iter().any(Request::is_busy)
    }

    /// Registers a request for `count` blocks (at most [`MAX_BLOCKS`]); `None` when all slots are busy.
    pub fn register(
        &mut self,
        index: u32,
        entry: &MapEntry,
        first: u32,
        count: u32,
        lsn: u64,
        demanded: bool,
    ) -> Option<GetPages> {
        let count = u16::try_from(count)
            .ok()
            .filter(|count| (1..=MAX_BLOCKS).contains(count))?;
        let slot = self.slots.iter_mut().find(|request| !request.is_busy())?;
        self.next_id += 1;
        *slot = Request {
            id: self.next_id,
            entry: index,
            first,
            count,
            demanded,
            answered: 0,
        };
        if !demanded {
            self.ahead += u32::from(count);
        }
        Some(GetPages {
            request_id: self.next_id,
            space: entry.space,
            db: entry.db,
            rel: entry.rel,
            fork: entry.fork as u8,
            first_block: first,
            count,
            lsn,
        })
    }

    /// Matches a reply. `None`: it answers nothing that was asked.
    pub fn answer(
        &mut self,
        reply: &PageReply,
        entries: &[MapEntry],
        lsn: u64,
    ) -> Option<Answered> {
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.is_busy() && slot.id == reply.request_id)?;
        let entry = entries.get(slot.entry as usize)?;
        let key = (reply.space, reply.db, reply.rel, u32::from(reply.fork));
        let asked = (entry.space, entry.db, entry.rel, entry.fork);
        if key != asked || reply.lsn != lsn || !slot.awaits(slot.entry, reply.block) {
            return None;
        }
        slot.answered |= 1 << (reply.block - slot.first);
        if !slot.demanded {
            self.ahead = self.ahead.saturating_sub(1);
        }
        let answered = Answered {
            entry: slot.entry,
            demanded: slot.demanded,
        };
        if slot.answered.count_ones() == u32::from(slot.count) {
            *slot = FREE;
        }
        Some(answered)
    }
}

impl Default for Requests {
    fn default() -> Requests {
        Requests::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn entry() -> MapEntry {
        MapEntry {
            space: 1663,
            db: 5,
            rel: 9,
            fork: 2,
            base_blocks: AtomicU32::new(300),
            initial_blocks: 300,
            states_start: 0,
        }
    }

    fn reply_to(get: &GetPages, block: u32) -> PageReply {
        PageReply {
            request_id: get.request_id,
            space: get.space,
            db: get.db,
            rel: get.rel,
            fork: get.fork,
            block,
            status: 0,
            payload: 8192,
            lsn: get.lsn,
        }
    }

    #[test]
    fn only_exact_answers_are_believed_and_only_once() {
        let entries = [entry()];
        let mut requests = Requests::new();
        let get = requests
            .register(0, &entries[0], 10, 128, 77, true)
            .unwrap();
        let good = reply_to(&get, 137);
        for bad in [
            PageReply {
                request_id: get.request_id + 1,
                ..good
            },
            PageReply {
                request_id: 0,
                ..good
            },
            PageReply {
                space: 1664,
                ..good
            },
            PageReply { db: 6, ..good },
            PageReply { rel: 8, ..good },
            PageReply { fork: 0, ..good },
            PageReply { block: 138, ..good },
            PageReply { block: 9, ..good },
            PageReply { lsn: 78, ..good },
        ] {
            assert_eq!(requests.answer(&bad, &entries, 77), None, "{bad:?}");
        }
        assert!(requests.awaits(0, 137));
        assert_eq!(
            requests.answer(&good, &entries, 77),
            Some(Answered {
                entry: 0,
                demanded: true
            })
        );
        assert!(!requests.awaits(0, 137));
        assert_eq!(
            requests.answer(&good, &entries, 77),
            None,
            "an answer counts once"
        );
        for block in 10..137 {
            assert!(
                requests
                    .answer(&reply_to(&get, block), &entries, 77)
                    .is_some()
            );
        }
        assert!(!requests.any());
    }

    #[test]
    fn outstanding_requests_are_bounded() {
        let entry = entry();
        let mut requests = Requests::new();
        for block in 0..MAX_OUTSTANDING as u32 {
            assert!(requests.register(0, &entry, block, 1, 1, false).is_some());
        }
        assert_eq!(requests.free(), 0);
        assert!(requests.register(0, &entry, 99, 1, 1, true).is_none());
        assert_eq!(requests.ahead, 64);
        requests.clear();
        assert_eq!((requests.free(), requests.ahead), (MAX_OUTSTANDING, 0));
        assert!(
            requests.register(0, &entry, 0, 129, 1, true).is_none(),
            "too many blocks"
        );
    }
}
