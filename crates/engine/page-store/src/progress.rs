//! How far the store has come, and waiting for it to come further.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use pg_types::Lsn;

use crate::identity::Watermark;

/// The store's watermarks and everything that threads wait for.
pub(crate) struct Progress {
    /// Copy of `state.applied.lsn` that readers look at without the lock.
    applied: AtomicU64,
    state: Mutex<ProgressState>,
    /// Watermarks moved, or will not move any more.
    moved: Condvar,
    /// There may be work for the background threads. Apart from `moved`, which is signalled
    /// thousands of times a second.
    work: Condvar,
}

/// What is behind the lock.
pub(crate) struct ProgressState {
    /// Everything at or below is ingested.
    pub(crate) applied: Watermark,
    /// Everything at or below is in layer files.
    pub(crate) durable: Watermark,
    /// The store is being closed: threads end.
    pub(crate) closing: bool,
}

impl Progress {
    /// Progress of a store that has everything up to `durable` on disk.
    pub(crate) fn new(durable: Watermark) -> Progress {
        Progress {
            applied: AtomicU64::new(durable.lsn.0),
            state: Mutex::new(ProgressState {
                applied: durable,
                durable,
                closing: false,
            }),
            moved: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Everything at or below is ingested.
    pub(crate) fn applied(&self) -> Lsn {
        Lsn(self.applied.load(Ordering::Acquire))
    }

    /// The state now.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock()
    }

    /// Announces that everything up to `applied` is ingested.
    pub(crate) fn set_applied(&self, applied: Watermark) {
        let mut state = self.state.lock();
        state.applied = applied;
        self.applied.store(applied.lsn.0, Ordering::Release);
        self.moved.notify_all();
    }

    /// Announces that everything up to `durable` is on disk.
    pub(crate) fn set_durable(&self, durable: Watermark) {
        let mut state = self.state.lock();
        if durable.lsn > state.durable.lsn {
            state.durable = durable;
        }
        self.moved.notify_all();
        self.work.notify_all();
    }

    /// Wakes everyone up to look again.
    pub(crate) fn wake(&self) {
        // Under the lock, or a thread between its check and its wait would sleep through this.
        let _state = self.state.lock();
        self.moved.notify_all();
        self.work.notify_all();
    }

    /// Tells every thread to end.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        self.moved.notify_all();
        self.work.notify_all();
    }

    /// Waits until `ready` has something to do, for a background thread; `None` when the store is
    /// being closed.
    pub(crate) fn wait_for_work<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.closing {
                return None;
            }
            if let Some(found) = ready() {
                return Some(found);
            }
            self.work.wait(&mut state);
        }
    }

    /// Waits until `done` says so, at most until `deadline`. Returns whether it did.
    pub(crate) fn wait_until(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&ProgressState) -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        loop {
            if done(&state) {
                return true;
            }
            match deadline {
                None => self.moved.wait(&mut state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left == Duration::ZERO {
                        return false;
                    }
                    self.moved.wait_for(&mut state, left);
                }
            }
        }
    }
}
