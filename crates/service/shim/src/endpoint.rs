//! Connecting to the page server's endpoint.

use std::ffi::CStr;

use libc::{c_int, sockaddr, socklen_t, timeval};

use crate::real;

/// A connected stream socket to `unix:/path` or `tcp:host:port`, closed on exec, whose sends and
/// receives give up after `patience_ms` (and, because they have a limit, after any signal).
///
/// # Errors
/// An errno.
pub fn connect(endpoint: &CStr, patience_ms: i64) -> Result<c_int, c_int> {
    let text = endpoint.to_bytes();
    if let Some(path) = text.strip_prefix(b"unix:") {
        return connect_unix(path, patience_ms);
    }
    let Some(address) = text.strip_prefix(b"tcp:") else {
        return Err(libc::EINVAL);
    };
    connect_tcp(address, patience_ms)
}

fn connect_unix(path: &[u8], patience_ms: i64) -> Result<c_int, c_int> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // One byte stays zero behind the path.
    if path.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as socklen_t;
    attempt(libc::AF_UNIX, (&raw const address).cast(), len, patience_ms)
}

fn connect_tcp(address: &[u8], patience_ms: i64) -> Result<c_int, c_int> {
    let colon = address
        .iter()
        .rposition(|byte| *byte == b':')
        .ok_or(libc::EINVAL)?;
    let (mut host, port) = (
        address.get(..colon).unwrap_or_default(),
        address.get(colon + 1..),
    );
    if let Some(bare) = host
        .strip_prefix(b"[")
        .and_then(|host| host.strip_suffix(b"]"))
    {
        host = bare;
    }
    let mut texts = [[0u8; 256]; 2];
    for (to, from) in texts.iter_mut().zip([host, port.unwrap_or_default()]) {
        if from.len() > 255 {
            return Err(libc::EINVAL);
        }
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
    // SAFETY: an all-zero addrinfo is a valid hint.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut list: *mut libc::addrinfo = std::ptr::null_mut();
    let [host, port] = &texts;
    // SAFETY: both texts are NUL-terminated; the list is freed below.
    let failed = unsafe {
        libc::getaddrinfo(
            host.as_ptr().cast(),
            port.as_ptr().cast(),
            &raw const hints,
            &raw mut list,
        )
    };
    if failed != 0 {
        return Err(libc::EHOSTUNREACH);
    }
    let mut result = Err(libc::EHOSTUNREACH);
    let mut next = list;
    // SAFETY: getaddrinfo's list is valid until freed and ends with a null pointer.
    while let Some(info) = unsafe { next.as_ref() } {
        result = attempt(info.ai_family, info.ai_addr, info.ai_addrlen, patience_ms);
        if result.is_ok() {
            break;
        }
        next = info.ai_next;
    }
    // SAFETY: the list came from getaddrinfo.
    unsafe { libc::freeaddrinfo(list) };
    if let Ok(fd) = result {
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
    }
    result
}

fn set_option<T>(fd: c_int, level: c_int, option: c_int, value: &T) {
    // SAFETY: the value is valid for its own size.
    unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as socklen_t,
        )
    };
}

fn attempt(
    family: c_int,
    address: *const sockaddr,
    len: socklen_t,
    patience_ms: i64,
) -> Result<c_int, c_int> {
    // SAFETY: socket has no memory preconditions.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(real::errno());
    }
    let patience = timeval {
        tv_sec: patience_ms / 1000,
        tv_usec: patience_ms % 1000 * 1000,
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience);
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience);
    // SAFETY: the address is valid for `len`.
    if unsafe { libc::connect(fd, address, len) } != 0 {
        let errno = real::errno();
        // SAFETY: opened above.
        unsafe { real::close(fd) };
        return Err(errno);
    }
    Ok(fd)
}
