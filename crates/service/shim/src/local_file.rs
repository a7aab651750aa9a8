//! The shim's own descriptors of segment files: for filling blocks that PostgreSQL did not open the
//! file for (read-ahead), and for punching evicted ones out.
//!
//! **Invariant.** A cached descriptor is the file that the entry's governed blocks live in: a segment is
//! unlinked only after `base_blocks` fell below it, and from then on nothing of it is filled or evicted,
//! so a file that takes its name later is never touched through the stale descriptor.

use libc::c_int;

use crate::attach::{Attached, Segment};
use crate::{fds, real};

/// Few, because they count against PostgreSQL's own limit of open files.
const CACHED: usize = 8;

#[derive(Clone, Copy)]
struct Cached {
    segment: Option<Segment>,
    fd: c_int,
    used: u64,
}

/// Descriptors of recently filled or evicted segments.
pub struct LocalFiles {
    cached: [Cached; CACHED],
    clock: u64,
}

impl LocalFiles {
    /// None open.
    #[must_use]
    pub const fn new() -> LocalFiles {
        LocalFiles {
            cached: [Cached {
                segment: None,
                fd: 0,
                used: 0,
            }; CACHED],
            clock: 0,
        }
    }

    /// A descriptor for writing the segment; `None` when it cannot be opened.
    pub fn descriptor(&mut self, attached: &Attached, segment: Segment) -> Option<c_int> {
        self.clock += 1;
        let clock = self.clock;
        if let Some(hit) = self
            .cached
            .iter_mut()
            .find(|slot| slot.segment == Some(segment))
        {
            hit.used = clock;
            return Some(hit.fd);
        }
        let path = attached.path_of(&segment)?;
        // SAFETY: the path is NUL-terminated.
        let fd = unsafe { real::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) };
        if fd < 0 {
            return None;
        }
        fds::mark_own(fd);
        let slot = self.cached.iter_mut().min_by_key(|slot| slot.used)?;
        if slot.segment.is_some() {
            let _ = fds::closing(slot.fd);
            // SAFETY: the shim's own descriptor.
            unsafe { real::close(slot.fd) };
        }
        *slot = Cached {
            segment: Some(segment),
            fd,
            used: clock,
        };
        Some(fd)
    }

    /// Forgets a descriptor that the program itself closes.
    pub fn forget(&mut self, fd: c_int) {
        for slot in &mut self.cached {
            if slot.segment.is_some() && slot.fd == fd {
                *slot = Cached {
                    segment: None,
                    fd: 0,
                    used: 0,
                };
            }
        }
    }
}

impl Default for LocalFiles {
    fn default() -> LocalFiles {
        LocalFiles::new()
    }
}
