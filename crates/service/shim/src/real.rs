//! The C library's own functions, behind the ones this library puts in front of them.
//!
//! **Invariant.** Nothing in this crate calls an interposed function by name: such a call would come
//! back to the shim. Addresses are looked up once with `RTLD_NEXT`, lazily, because another library's
//! constructor may open a file before ours has run.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};

fn resolve(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: the name is NUL-terminated; dlsym has no other precondition.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if found == 0 {
        crate::report::fatal(format_args!("the C library has no {name:?}"));
    }
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C function's.
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            static ADDRESS: AtomicUsize = AtomicUsize::new(0);
            let address = resolve(&ADDRESS, $symbol);
            // SAFETY: `resolve` returned the C library's function of this name, which has this signature;
            // for the call, the caller's promise.
            unsafe {
                let function: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(address);
                function($($arg),*)
            }
        }
    )*};
}

real! {
    /// `open(2)`. Variadic in C: see [`crate::interposed`] on why a fixed signature does.
    open = c"open"(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    /// `openat(2)`.
    openat = c"openat"(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    /// `close(2)`.
    close = c"close"(fd: c_int) -> c_int;
    /// `read(2)`.
    read = c"read"(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    /// `write(2)`.
    write = c"write"(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    /// `pread(2)`.
    pread = c"pread64"(fd: c_int, buf: *mut c_void, len: size_t, at: off_t) -> ssize_t;
    /// `preadv(2)`.
    preadv = c"preadv64"(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    /// `pwrite(2)`.
    pwrite = c"pwrite64"(fd: c_int, buf: *const c_void, len: size_t, at: off_t) -> ssize_t;
    /// `pwritev(2)`.
    pwritev = c"pwritev64"(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    /// `ftruncate(2)`.
    ftruncate = c"ftruncate64"(fd: c_int, len: off_t) -> c_int;
    /// `truncate(2)`.
    truncate = c"truncate64"(path: *const c_char, len: off_t) -> c_int;
    /// `fallocate(2)`.
    fallocate = c"fallocate64"(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    /// `posix_fadvise(2)`.
    posix_fadvise = c"posix_fadvise64"(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int;
    /// `unlink(2)`.
    unlink = c"unlink"(path: *const c_char) -> c_int;
    /// `unlinkat(2)`.
    unlinkat = c"unlinkat"(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    /// `rename(2)`.
    rename = c"rename"(from: *const c_char, to: *const c_char) -> c_int;
    /// `copy_file_range(2)`.
    copy_file_range = c"copy_file_range"(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
}

/// The calling thread's `errno`.
#[must_use]
pub fn errno() -> c_int {
    // SAFETY: errno's location is valid in every thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: errno's location is valid in every thread.
    unsafe { *libc::__errno_location() = value }
}

/// Restores `errno` when it goes out of scope, so that a call that succeeds leaves it as it was.
pub struct KeepErrno(c_int);

impl KeepErrno {
    /// Remembers `errno`.
    #[must_use]
    pub fn new() -> KeepErrno {
        KeepErrno(errno())
    }
}

impl Default for KeepErrno {
    fn default() -> KeepErrno {
        KeepErrno::new()
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}
