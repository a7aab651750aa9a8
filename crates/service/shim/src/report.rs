//! Lines on stderr, where PostgreSQL's logging finds them, composed without the heap.

use std::fmt::{self, Write};

struct Line {
    bytes: [u8; 600],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is kept for the newline; what does not fit is cut off.
        let room = self.bytes.len().saturating_sub(self.len + 1);
        let take = text.len().min(room);
        if let (Some(to), Some(from)) = (
            self.bytes.get_mut(self.len..self.len + take),
            text.as_bytes().get(..take),
        ) {
            to.copy_from_slice(from);
            self.len += take;
        }
        Ok(())
    }
}

/// Writes one line, `strandline shim [pid]: …`. Leaves `errno` alone.
pub fn line(message: fmt::Arguments<'_>) {
    let _keep = crate::real::KeepErrno::new();
    let mut line = Line {
        bytes: [0; 600],
        len: 0,
    };
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    let _ = write!(line, "strandline shim [{pid}]: {message}");
    if let Some(end) = line.bytes.get_mut(line.len) {
        *end = b'\n';
        line.len += 1;
    }
    // SAFETY: `len` bytes of the buffer are initialised.
    unsafe { crate::real::write(2, line.bytes.as_ptr().cast(), line.len) };
}

/// Writes one line and ends the process: a server that cannot be given its pages must not run.
pub fn fatal(message: fmt::Arguments<'_>) -> ! {
    line(message);
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(1) }
}
