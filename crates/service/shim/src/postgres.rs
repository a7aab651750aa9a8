//! What the shim asks of the server it is loaded into: is a cancel pending?
//!
//! **Invariant.** Every symbol is optional (another program may be running under the shim), and they
//! are only read. PostgreSQL exports them to its extensions, so they are there in stock builds.

use std::ffi::CStr;

/// PostgreSQL's flags, where it has them.
#[derive(Debug, Clone, Copy)]
pub struct Interrupts {
    query_cancel: Option<&'static std::sync::atomic::AtomicI32>,
    process_die: Option<&'static std::sync::atomic::AtomicI32>,
    critical_sections: Option<&'static std::sync::atomic::AtomicI32>,
}

fn symbol(name: &CStr) -> Option<&'static std::sync::atomic::AtomicI32> {
    // SAFETY: the name is NUL-terminated.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: PostgreSQL declares these `volatile sig_atomic_t` or `volatile uint32`, both a 32-bit
    // word that lives as long as the program; only loads are done on it.
    unsafe { address.cast::<std::sync::atomic::AtomicI32>().as_ref() }
}

/// Looks PostgreSQL's flags up.
#[must_use]
pub fn interrupts() -> Interrupts {
    Interrupts {
        query_cancel: symbol(c"QueryCancelPending"),
        process_die: symbol(c"ProcDiePending"),
        critical_sections: symbol(c"CritSectionCount"),
    }
}

impl Interrupts {
    /// Whether a read should give up now. Not within a critical section: there PostgreSQL turns every
    /// error into a PANIC. `InterruptHoldoffCount` does not matter: an error, unlike an interrupt, is
    /// allowed while a lock is held, and releases it.
    #[must_use]
    pub fn pending(&self) -> bool {
        let set = |flag: Option<&std::sync::atomic::AtomicI32>| {
            flag.is_some_and(|flag| flag.load(std::sync::atomic::Ordering::Relaxed) != 0)
        };
        (set(self.query_cancel) || set(self.process_die)) && !set(self.critical_sections)
    }
}
