//! The double buffer between receiving and making durable: while one batch is being synced, the next
//! is received.

use parking_lot::{Condvar, Mutex};
use pg_types::Lsn;

/// Bytes received ahead of the disk; then the receiver waits, and with it the primary.
const MAX_BUFFERED: usize = 16 << 20;

/// Contiguous WAL on its way to the disk.
#[derive(Debug)]
pub(crate) struct DoubleBuffer {
    state: Mutex<Filling>,
    changed: Condvar,
}

#[derive(Debug)]
struct Filling {
    at: Lsn,
    bytes: Vec<u8>,
    /// No more comes; what is there is still taken.
    closed: bool,
    /// The taker has given up.
    abandoned: bool,
}

impl DoubleBuffer {
    pub(crate) const fn new(at: Lsn) -> DoubleBuffer {
        DoubleBuffer {
            state: Mutex::new(Filling {
                at,
                bytes: Vec::new(),
                closed: false,
                abandoned: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Appends WAL that begins at `at`, waiting for room; what was appended before is skipped. False
    /// when the taker has given up or bytes between are missing.
    pub(crate) fn append(&self, at: Lsn, data: &[u8]) -> bool {
        let mut state = self.state.lock();
        while state.bytes.len() >= MAX_BUFFERED && !state.abandoned {
            self.changed.wait(&mut state);
        }
        let end = state.at.advance(state.bytes.len() as u64);
        if state.abandoned || at > end {
            return false;
        }
        let known = usize::try_from(end.since(at)).unwrap_or(usize::MAX);
        state
            .bytes
            .extend_from_slice(data.get(known..).unwrap_or_default());
        self.changed.notify_all();
        true
    }

    /// End of what was received.
    pub(crate) fn received(&self) -> Lsn {
        let state = self.state.lock();
        state.at.advance(state.bytes.len() as u64)
    }

    /// Waits for WAL and takes all of it in exchange for an empty buffer; `None` when no more comes.
    pub(crate) fn take(&self, mut empty: Vec<u8>) -> Option<(Lsn, Vec<u8>)> {
        empty.clear();
        let mut state = self.state.lock();
        while state.bytes.is_empty() {
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
        let at = state.at;
        let full = std::mem::replace(&mut state.bytes, empty);
        state.at = at.advance(full.len() as u64);
        self.changed.notify_all();
        Some((at, full))
    }

    /// No more WAL comes.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Nothing is taken any more.
    pub(crate) fn abandon(&self) {
        self.state.lock().abandoned = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_contiguous_and_resent_bytes_are_skipped() {
        let buffer = DoubleBuffer::new(Lsn(100));
        assert!(buffer.append(Lsn(100), b"abc"));
        assert!(buffer.append(Lsn(101), b"bcde"));
        assert!(!buffer.append(Lsn(106), b"gap"));
        assert_eq!(buffer.received(), Lsn(105));
        assert_eq!(buffer.take(Vec::new()), Some((Lsn(100), b"abcde".to_vec())));
        assert!(buffer.append(Lsn(105), b"f"));
        buffer.close();
        assert_eq!(buffer.take(Vec::new()), Some((Lsn(105), b"f".to_vec())));
        assert_eq!(buffer.take(Vec::new()), None);
        buffer.abandon();
        assert!(!buffer.append(Lsn(106), b"g"));
    }
}
