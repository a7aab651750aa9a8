//! The C library functions that the shim puts itself in front of.
//!
//! **Invariant.** For anything that is not a governed file, each is the C library's function and
//! nothing else.
//!
//! `open`, `openat` and `fcntl`-like functions are variadic in C. Here they have a fixed third (fourth)
//! argument: in the System V ABIs of x86-64 and AArch64 an integer argument travels in the same register
//! whether the callee is variadic or not, and a caller that passed none leaves a register whose value
//! the kernel ignores without `O_CREAT`/`O_TMPFILE`. (Not so on Apple's AArch64, where PostgreSQL's
//! variadic arguments go on the stack; the shim is for Linux.)

use libc::{c_char, c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};

use crate::attach::{Attached, Segment, attached};
use crate::fds::{self, Governed};
use crate::governed::{self, Buffers};
use crate::{real, session};

fn governed_file(fd: c_int) -> Option<(&'static Attached, Governed)> {
    let attached = attached()?;
    Some((attached, fds::governed(fd)?))
}

unsafe fn governed_path(path: *const c_char) -> Option<(&'static Attached, Segment)> {
    let attached = attached()?;
    // SAFETY: the caller's promise.
    Some((attached, unsafe { attached.governs(path)? }))
}

fn fail(errno: c_int) -> c_int {
    real::set_errno(errno);
    -1
}

unsafe fn opened(path: *const c_char, flags: c_int, open: impl FnOnce() -> c_int) -> c_int {
    let Some(attached) = attached() else {
        return open();
    };
    // SAFETY: the caller's promise.
    let segment = unsafe { attached.governs(path) };
    if let Some(segment) = segment
        && flags & libc::O_TRUNC != 0
        && let Err(errno) = governed::cut(attached, &segment, -1, 0)
    {
        return fail(errno);
    }
    let fd = open();
    if fd >= 0 && !fds::opened(fd, segment, flags) {
        // SAFETY: just opened.
        unsafe { real::close(fd) };
        return fail(libc::EMFILE);
    }
    fd
}

unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let is_absolute = !path.is_null() && unsafe { *path } == b'/' as c_char;
    if dir == libc::AT_FDCWD || is_absolute {
        // SAFETY: the caller's promise.
        return unsafe { opened(path, flags, || real::openat(dir, path, flags, mode)) };
    }
    // SAFETY: the caller's promise. A path relative to a descriptor is none of PostgreSQL's own.
    unsafe {
        opened(std::ptr::null(), flags, || {
            real::openat(dir, path, flags, mode)
        })
    }
}

unsafe fn read_at(fd: c_int, buffers: &Buffers<'_>, at: off_t) -> Option<ssize_t> {
    let (attached, file) = governed_file(fd)?;
    // SAFETY: the caller's promise.
    Some(unsafe { governed::read(attached, fd, &file, buffers, at) })
}

unsafe fn write_at(fd: c_int, buffers: &Buffers<'_>, at: off_t) -> Option<ssize_t> {
    let (attached, file) = governed_file(fd)?;
    if !file.writable {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { governed::write(attached, fd, &file, buffers, at) })
}

/// Reads or writes at the descriptor's own offset and moves it.
unsafe fn at_offset(
    fd: c_int,
    whence: c_int,
    transfer: impl FnOnce(off_t) -> Option<ssize_t>,
) -> Option<ssize_t> {
    fds::governed(fd)?;
    // SAFETY: lseek has no memory preconditions.
    let at = unsafe { libc::lseek(fd, 0, whence) };
    if at < 0 {
        return Some(-1);
    }
    let done = transfer(at)?;
    if done > 0 {
        // SAFETY: as above.
        unsafe { libc::lseek(fd, at + done as off_t, libc::SEEK_SET) };
    }
    Some(done)
}

unsafe fn cut_file(fd: c_int, len: off_t) -> Option<c_int> {
    let (attached, file) = governed_file(fd)?;
    governed::cut(attached, &file.segment, fd, len)
        .err()
        .map(fail)
}

unsafe fn cut_path(path: *const c_char, len: off_t) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let (attached, segment) = unsafe { governed_path(path)? };
    // Without a descriptor, a block that is kept in part is fetched through the shim's own.
    governed::cut(attached, &segment, -1, len).err().map(fail)
}

/// Moving a governed file away takes its content along; moving one over a governed file replaces it.
unsafe fn moved(from: *const c_char, to: *const c_char) -> Option<c_int> {
    // SAFETY: the caller's promise.
    if let Some((attached, segment)) = unsafe { governed_path(from) } {
        let bytes = i64::from(segment.blocks) * crate::blocks::BLOCK_BYTES as i64;
        let blocks = attached
            .entry(segment.entry)
            .map_or(0, |entry| entry.initial_blocks);
        let held = i64::from(
            blocks
                .saturating_sub(segment.first_block())
                .min(segment.blocks),
        );
        let len = bytes.min(held * crate::blocks::BLOCK_BYTES as i64);
        let done = governed::own_range(attached, &segment, 0, len)
            .and_then(|()| governed::cut(attached, &segment, -1, 0));
        if let Err(errno) = done {
            return Some(fail(errno));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { cut_path(to, 0) }
}

/// `copy_file_range` of a governed file, through a buffer: what the kernel copies by itself could be
/// evicted under its hands.
unsafe fn copy_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
) -> Option<ssize_t> {
    if fds::governed(from).is_none() && fds::governed(to).is_none() {
        return None;
    }
    let mut page = [0u8; 64 * 1024];
    let take = len.min(page.len());
    // SAFETY: the buffer is this long; the offsets are the caller's, null or valid.
    let got = unsafe {
        match from_at.as_ref() {
            Some(at) => interposed_pread(from, page.as_mut_ptr().cast(), take, *at),
            None => interposed_read(from, page.as_mut_ptr().cast(), take),
        }
    };
    let Ok(take) = usize::try_from(got) else {
        return Some(got);
    };
    if take == 0 {
        return Some(0);
    }
    // SAFETY: as above.
    let put = unsafe {
        match to_at.as_ref() {
            Some(at) => interposed_pwrite(to, page.as_ptr().cast(), take, *at),
            None => interposed_write(to, page.as_ptr().cast(), take),
        }
    };
    let done = put.max(0);
    // SAFETY: as above. A source offset of the descriptor's own steps back over what was not written.
    unsafe {
        match from_at.as_mut() {
            Some(at) => *at += done as off_t,
            None if done < got => {
                libc::lseek(from, (done - got) as off_t, libc::SEEK_CUR);
            }
            None => {}
        }
        if let Some(at) = to_at.as_mut() {
            *at += done as off_t;
        }
    }
    Some(put)
}

unsafe fn interposed_read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let governed = unsafe {
        at_offset(fd, libc::SEEK_CUR, |at| {
            read_at(fd, &Buffers::one(buf, len), at)
        })
    };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::read(fd, buf, len) })
}

unsafe fn interposed_write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    let append = fds::governed(fd).is_some_and(|file| file.append);
    let whence = if append {
        libc::SEEK_END
    } else {
        libc::SEEK_CUR
    };
    // SAFETY: the caller's promise; a write does not change the buffer.
    let governed = unsafe {
        at_offset(fd, whence, |at| {
            write_at(fd, &Buffers::one(buf.cast_mut(), len), at)
        })
    };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::write(fd, buf, len) })
}

unsafe fn interposed_pread(fd: c_int, buf: *mut c_void, len: size_t, at: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let governed = unsafe { read_at(fd, &Buffers::one(buf, len), at) };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::pread(fd, buf, len, at) })
}

unsafe fn interposed_pwrite(fd: c_int, buf: *const c_void, len: size_t, at: off_t) -> ssize_t {
    // SAFETY: the caller's promise; a write does not change the buffer.
    let governed = unsafe { write_at(fd, &Buffers::one(buf.cast_mut(), len), at) };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::pwrite(fd, buf, len, at) })
}

unsafe fn interposed_preadv(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
    if fds::governed(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::preadv(fd, iov, count, at) };
    }
    // SAFETY: the caller's promise.
    let governed = unsafe { read_at(fd, &Buffers::several(iov, count), at) };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::preadv(fd, iov, count, at) })
}

unsafe fn interposed_pwritev(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
    if fds::governed(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::pwritev(fd, iov, count, at) };
    }
    // SAFETY: the caller's promise.
    let governed = unsafe { write_at(fd, &Buffers::several(iov, count), at) };
    // SAFETY: the caller's promise.
    governed.unwrap_or_else(|| unsafe { real::pwritev(fd, iov, count, at) })
}

unsafe fn interposed_close(fd: c_int) -> c_int {
    if attached().is_some() && fds::closing(fd) {
        // Somebody closes every descriptor they find, ours among them.
        session::with(|session| session.forget_descriptor(fd));
    }
    // SAFETY: the caller's promise.
    unsafe { real::close(fd) }
}

unsafe fn interposed_fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
    const HARMLESS: c_int = libc::FALLOC_FL_KEEP_SIZE;
    if mode & !HARMLESS != 0
        && let Some((attached, file)) = governed_file(fd)
    {
        // Punching, zeroing, shifting: the content is the program's own from here on.
        let blocks = file.segment.blocks;
        let bytes = i64::from(blocks) * crate::blocks::BLOCK_BYTES as i64;
        let len = len.min(bytes.saturating_sub(at));
        if let Err(errno) = governed::own_range(attached, &file.segment, at, len) {
            return fail(errno);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::fallocate(fd, mode, at, len) }
}

unsafe fn interposed_fadvise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
    if advice == libc::POSIX_FADV_WILLNEED
        && let Some((attached, file)) = governed_file(fd)
    {
        governed::advise(attached, &file.segment, at, len);
    }
    // SAFETY: the caller's promise.
    unsafe { real::posix_fadvise(fd, at, len, advice) }
}

unsafe fn interposed_unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    if dir == libc::AT_FDCWD
        && flags == 0
        // SAFETY: the caller's promise.
        && let Some(errno) = unsafe { cut_path(path, 0) }
    {
        return errno;
    }
    // SAFETY: the caller's promise.
    unsafe { real::unlinkat(dir, path, flags) }
}

macro_rules! interpose {
    ($([$($name:ident),+] $args:tt -> $ret:ty $body:block)*) => {
        $(interpose! { @each [$($name),+] $args $ret $body })*
    };
    (@each [$($name:ident),+] $args:tt $ret:ty $body:block) => {
        $(interpose! { @one $name $args $ret $body })+
    };
    (@one $name:ident ($($arg:ident: $ty:ty),* $(,)?) $ret:ty $body:block) => {
        /// The C library function of this name; see the module's documentation.
        ///
        /// # Safety
        /// As the C function's.
        #[cfg_attr(not(test), unsafe(no_mangle))] // A unit test binary keeps its C library.
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller's promise.
            unsafe { $body }
        }
    };
}

const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

interpose! {
    [open, open64] (path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opened(path, flags, || real::open(path, flags, mode))
    }
    [__open_2, __open64_2] (path: *const c_char, flags: c_int) -> c_int {
        opened(path, flags, || real::open(path, flags, 0))
    }
    [creat, creat64] (path: *const c_char, mode: c_uint) -> c_int {
        opened(path, CREATE, || real::open(path, CREATE, mode))
    }
    [openat, openat64] (dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open_at(dir, path, flags, mode)
    }
    [__openat_2, __openat64_2] (dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dir, path, flags, 0)
    }
    [close] (fd: c_int) -> c_int { interposed_close(fd) }
    [read] (fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t { interposed_read(fd, buf, len) }
    [__read_chk] (fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room { libc::abort() }
        interposed_read(fd, buf, len)
    }
    [write] (fd: c_int, buf: *const c_void, len: size_t) -> ssize_t { interposed_write(fd, buf, len) }
    [pread, pread64] (fd: c_int, buf: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        interposed_pread(fd, buf, len, at)
    }
    [__pread_chk, __pread64_chk] (
        fd: c_int, buf: *mut c_void, len: size_t, at: off_t, room: size_t
    ) -> ssize_t {
        if len > room { libc::abort() }
        interposed_pread(fd, buf, len, at)
    }
    [preadv, preadv64] (fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        interposed_preadv(fd, iov, count, at)
    }
    [pwrite, pwrite64] (fd: c_int, buf: *const c_void, len: size_t, at: off_t) -> ssize_t {
        interposed_pwrite(fd, buf, len, at)
    }
    [pwritev, pwritev64] (fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        interposed_pwritev(fd, iov, count, at)
    }
    [ftruncate, ftruncate64] (fd: c_int, len: off_t) -> c_int {
        cut_file(fd, len).unwrap_or_else(|| real::ftruncate(fd, len))
    }
    [truncate, truncate64] (path: *const c_char, len: off_t) -> c_int {
        cut_path(path, len).unwrap_or_else(|| real::truncate(path, len))
    }
    [fallocate, fallocate64] (fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        interposed_fallocate(fd, mode, at, len)
    }
    [posix_fadvise, posix_fadvise64] (fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        interposed_fadvise(fd, at, len, advice)
    }
    [unlink] (path: *const c_char) -> c_int {
        cut_path(path, 0).unwrap_or_else(|| real::unlink(path))
    }
    [unlinkat] (dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        interposed_unlinkat(dir, path, flags)
    }
    [rename] (from: *const c_char, to: *const c_char) -> c_int {
        moved(from, to).unwrap_or_else(|| real::rename(from, to))
    }
    [copy_file_range] (
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t {
        copy_range(from, from_at, to, to_at, len)
            .unwrap_or_else(|| real::copy_file_range(from, from_at, to, to_at, len, flags))
    }
}
