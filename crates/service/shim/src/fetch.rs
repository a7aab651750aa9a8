//! Getting absent blocks: asking for them, waiting for the answers, giving up.
//!
//! **Invariant.** While a process waits for the server it holds no block, so nobody waits for it; and it
//! returns only with every block it was asked for, or an error. The wait is bounded by the map's
//! `read_timeout_ms`, by a pending cancel, and by nothing else: storage that is away for a minute makes
//! queries slow, not wrong.

use std::ops::Range;
use std::sync::atomic::Ordering;

use libc::c_int;
use shim_abi::map::{MapEntry, STATE_ABSENT};
use shim_abi::wire::MAX_BLOCKS;

use crate::attach::{Attached, Segment};
use crate::blocks;
use crate::fill::{self, Demand};
use crate::report;
use crate::session::{Received, Session, Trouble, now_ms};

/// Requests kept free for reads when read-ahead and advice use the rest.
const RESERVED_REQUESTS: usize = 8;
/// Pages that read-ahead and advice may await together.
const MOST_AHEAD: u32 = 512;

/// Counts this process among the waiting ones while it lives.
struct Waiting<'a>(Option<&'a Attached>);

impl<'a> Waiting<'a> {
    fn begin(&mut self, attached: &'a Attached) {
        if self.0.is_none() {
            attached.map.header.waiting.fetch_add(1, Ordering::Relaxed);
            self.0 = Some(attached);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(attached) = self.0 {
            attached.map.header.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Gets every missing block of a demand. `ahead` is asked for right behind them.
///
/// # Errors
/// An errno for the caller: EIO when storage refused, stayed away too long or a cancel is pending, or
/// the local file's own error when the blocks have to be in it.
///
/// # Safety
/// The demand's target and descriptor are valid.
pub unsafe fn fetch(
    session: &mut Session,
    attached: &Attached,
    demand: &mut Demand<'_>,
    mut ahead: Option<Range<u32>>,
) -> Result<(), c_int> {
    let Some(entry) = attached.entry(demand.segment.entry) else {
        return Err(libc::EIO);
    };
    let mut waiting = Waiting(None);
    let mut progress_ms = now_ms();
    let result = loop {
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { fill::take_local(attached, demand) } {
            break Err(errno);
        }
        if demand.missing.is_empty() {
            break Ok(());
        }
        if demand.target.is_none() && demand.local_error != 0 {
            break Err(demand.local_error);
        }
        // SAFETY: the caller's promise.
        let turn = unsafe { exchange(session, attached, entry, demand, &mut ahead) };
        match turn {
            Ok(Turn::Pages) => {
                progress_ms = now_ms();
                continue;
            }
            Ok(Turn::Nothing) => {}
            Ok(Turn::Retry) | Err(Trouble::Unavailable) => {
                waiting.begin(attached);
                session.back_off();
            }
            Err(Trouble::Refused) => break Err(libc::EIO),
        }
        waiting.begin(attached);
        let timeout = attached.map.header.read_timeout_ms;
        let waited = now_ms() - progress_ms;
        if attached.interrupts.pending() {
            explain(
                attached,
                entry,
                demand,
                "given up, because it was cancelled",
            );
            break Err(libc::EIO);
        }
        if timeout > 0 && waited > timeout as i64 {
            explain(
                attached,
                entry,
                demand,
                "given up: the storage node does not answer",
            );
            break Err(libc::EIO);
        }
        if waited > 1000 && session.tell_once() {
            explain(attached, entry, demand, "waiting for the storage node");
        }
    };
    if result.is_err() {
        attached
            .map
            .header
            .stat_errors
            .fetch_add(1, Ordering::Relaxed);
    }
    result
}

enum Turn {
    Pages,
    Nothing,
    Retry,
}

/// One turn of the conversation: ask for what is missing and not asked for, take what comes.
unsafe fn exchange(
    session: &mut Session,
    attached: &Attached,
    entry: &MapEntry,
    demand: &mut Demand<'_>,
    ahead: &mut Option<Range<u32>>,
) -> Result<Turn, Trouble> {
    session.connect(attached)?;
    request_missing(session, attached, entry, demand);
    if let Some(ahead) = ahead.take() {
        request_ahead(session, attached, demand.segment.entry, entry, ahead);
    }
    session.flush(attached)?;
    if session.receive(attached, true)? == Received::Nothing {
        return Ok(Turn::Nothing);
    }
    // SAFETY: the caller's promise.
    let replies = unsafe { session.process(attached, Some(demand))? };
    if replies.refused {
        return Err(Trouble::Refused);
    }
    Ok(match (replies.pages, replies.retry) {
        (_, true) => Turn::Retry,
        // A part of a page is progress of the conversation, though none of the demand.
        _ => Turn::Pages,
    })
}

fn request_missing(
    session: &mut Session,
    attached: &Attached,
    entry: &MapEntry,
    demand: &Demand<'_>,
) {
    let index = demand.segment.entry;
    let mut next = demand.missing.next(0);
    while let Some(bit) = next {
        let first = demand.first + bit;
        let mut count = 0;
        while count < u32::from(MAX_BLOCKS)
            && demand.missing.contains(bit + count)
            && !session.requests.awaits(index, first + count)
        {
            count += 1;
        }
        if count > 0 {
            let lsn = attached.map.header.start_lsn;
            session.expect_reply();
            match session
                .requests
                .register(index, entry, first, count, lsn, true)
            {
                Some(get) => session.enqueue_request(&get),
                // All requests are busy: their answers come first.
                None => return,
            }
        }
        next = demand.missing.next(bit + count.max(1));
    }
}

/// Asks for the absent blocks of a range without waiting for them.
fn request_ahead(
    session: &mut Session,
    attached: &Attached,
    index: u32,
    entry: &MapEntry,
    range: Range<u32>,
) {
    let end = range.end.min(entry.base_blocks.load(Ordering::SeqCst));
    let wanted = |session: &Session, block: u32| {
        attached.map.word(entry, block).is_some_and(|word| {
            blocks::state(word.load(Ordering::Relaxed)) == STATE_ABSENT
                && !session.requests.awaits(index, block)
        })
    };
    let mut block = range.start;
    while block < end {
        let mut count = 0;
        while count < u32::from(MAX_BLOCKS) && block + count < end && wanted(session, block + count)
        {
            count += 1;
        }
        if count > 0 {
            if session.requests.free() <= RESERVED_REQUESTS || session.requests.ahead >= MOST_AHEAD
            {
                return;
            }
            session.expect_reply();
            let lsn = attached.map.header.start_lsn;
            if let Some(get) = session
                .requests
                .register(index, entry, block, count, lsn, false)
            {
                session.enqueue_request(&get);
            }
        }
        block += count.max(1);
    }
}

/// Read-ahead and advice: asks for what is absent of a range of an entry's blocks. Never waits.
pub fn prefetch(session: &mut Session, attached: &Attached, index: u32, range: Range<u32>) {
    let Some(entry) = attached.entry(index) else {
        return;
    };
    let absent = range.clone().any(|block| {
        attached
            .map
            .word(entry, block)
            .is_some_and(|word| blocks::state(word.load(Ordering::Relaxed)) == STATE_ABSENT)
    });
    if !absent || !session.is_usable(attached) {
        return;
    }
    if session.requests.free() <= RESERVED_REQUESTS
        && session.receive(attached, false) == Ok(Received::Some)
    {
        // SAFETY: without a demand there is no target to vouch for.
        let _ = unsafe { session.process(attached, None) };
    }
    if session.is_usable(attached) {
        request_ahead(session, attached, index, entry, range);
        let _ = session.flush(attached);
    }
}

fn explain(attached: &Attached, entry: &MapEntry, demand: &Demand<'_>, what: &str) {
    let block = demand.first + demand.missing.next(0).unwrap_or(0);
    let (space, db, rel) = (entry.space, entry.db, entry.rel);
    let lsn = attached.map.header.start_lsn;
    report::line(format_args!(
        "read of {space}/{db}/{rel} fork {} block {block} at LSN {:X}/{:X}: {what}",
        entry.fork,
        lsn >> 32,
        lsn & 0xFFFF_FFFF,
    ));
}

/// Makes blocks of a segment local for good: fetched if need be, and WRITTEN, so that they stay.
///
/// # Errors
/// As [`fetch`].
pub fn own(
    session: &mut Session,
    attached: &Attached,
    segment: Segment,
    fd: c_int,
    writable: bool,
    range: Range<u32>,
) -> Result<(), c_int> {
    let Some(entry) = attached.entry(segment.entry) else {
        return Err(libc::EIO);
    };
    for block in range {
        let Some(word) = attached.map.word(entry, block) else {
            break;
        };
        while block < entry.base_blocks.load(Ordering::SeqCst)
            && !blocks::keep_if_here(&attached.map, word).map_err(|_| libc::EIO)?
        {
            let mut missing = crate::target::BlockSet::default();
            missing.insert(0);
            let mut demand = Demand {
                segment,
                first: block,
                missing,
                target: None,
                fd,
                writable,
                available: 0,
                local_error: 0,
            };
            // SAFETY: a demand without a target reads nothing into foreign memory.
            unsafe { fetch(session, attached, &mut demand, None)? };
        }
    }
    Ok(())
}
