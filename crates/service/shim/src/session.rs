//! This process's connection to the page server.
//!
//! **Invariant.** A connection belongs to the process that made it: a child forgets it right after
//! `fork`, or two processes would read each other's replies. A frame that is not the answer to an
//! outstanding request ends the connection and everything outstanding on it; nothing of it is used.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, MAX_OUTSTANDING, PageReply, STATUS_ERROR,
    STATUS_PAGE, STATUS_RETRY, STATUS_ZERO,
};

use crate::attach::Attached;
use crate::blocks::{BLOCK_BYTES, pause_ms};
use crate::endpoint;
use crate::fill::{self, Demand, Run};
use crate::local_file::LocalFiles;
use crate::readahead::ReadAhead;
use crate::requests::Requests;
use crate::{fds, real, report};

/// Longest message of the server that is read.
const MESSAGE_BYTES: usize = 4096;
/// Receive buffer: two full requests' replies. Zero, so it costs memory only as far as it was used.
const BUFFER_BYTES: usize = 2 * 128 * (FRAME_BYTES + BLOCK_BYTES);
/// Room asked for before each receive.
const LEAST_ROOM: usize = 64 * 1024;
/// How long a receive blocks before signals and timeouts are looked at.
pub const RECEIVE_MS: i64 = 100;
/// Silence after which a connection with outstanding requests is given up.
const SILENCE_MS: i64 = 30_000;
const FIRST_BACKOFF_MS: i32 = 10;
const LAST_BACKOFF_MS: i32 = 1000;

#[repr(align(4096))]
struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);

// SAFETY: used only under the session's lock.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));
static ZERO_PAGE: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Why something could not be had from the server now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Not reachable, dropped, or asking for patience: try again after the back-off.
    Unavailable,
    /// It refused for good; its message was reported.
    Refused,
}

/// What a receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Bytes.
    Some,
    /// Nothing within [`RECEIVE_MS`], or a signal.
    Nothing,
}

/// What the replies in the buffer said, besides pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replies {
    /// A page or more arrived.
    pub pages: bool,
    /// The server asked for patience about a demanded block.
    pub retry: bool,
    /// The server refused a demanded block; its message was reported.
    pub refused: bool,
}

/// The process's state.
pub struct Session {
    fd: c_int,
    connected: bool,
    start: usize,
    end: usize,
    heard_ms: i64,
    backoff_ms: i32,
    retry_at_ms: i64,
    told: bool,
    unsent: [u8; FRAME_BYTES * MAX_OUTSTANDING],
    unsent_len: usize,
    /// Outstanding requests.
    pub requests: Requests,
    /// Descriptors for filling and evicting.
    pub files: LocalFiles,
    /// Sequential readers.
    pub readahead: ReadAhead,
    /// Hits not yet added to the map's counter.
    pub hits: u64,
}

struct Process {
    busy: AtomicBool,
    session: UnsafeCell<Session>,
}

// SAFETY: the session is used only by whoever set `busy`.
unsafe impl Sync for Process {}

static PROCESS: Process = Process {
    busy: AtomicBool::new(false),
    session: UnsafeCell::new(Session {
        fd: 0,
        connected: false,
        start: 0,
        end: 0,
        heard_ms: 0,
        backoff_ms: 0,
        retry_at_ms: 0,
        told: false,
        unsent: [0; FRAME_BYTES * MAX_OUTSTANDING],
        unsent_len: 0,
        requests: Requests::new(),
        files: LocalFiles::new(),
        readahead: ReadAhead::new(),
        hits: 0,
    }),
};

struct Unlock;

impl Drop for Unlock {
    fn drop(&mut self) {
        PROCESS.busy.store(false, Ordering::Release);
    }
}

/// Runs `work` on the process's session. PostgreSQL's processes have one thread, so this never waits
/// there; an extension's second thread waits for the first. Not to be nested.
pub fn with<T>(work: impl FnOnce(&mut Session) -> T) -> T {
    let mut round = 0u32;
    while PROCESS.busy.swap(true, Ordering::Acquire) {
        round = round.saturating_add(1);
        if round < 100 {
            std::hint::spin_loop();
        } else {
            pause_ms(1);
        }
    }
    let _unlock = Unlock;
    // SAFETY: `busy` was taken.
    work(unsafe { &mut *PROCESS.session.get() })
}

/// In a forked child: the parent's connection and outstanding requests are not ours.
pub extern "C" fn forget_in_child() {
    let _keep = real::KeepErrno::new();
    // The child has one thread, and the forking thread was not inside `with`.
    PROCESS.busy.store(false, Ordering::Release);
    with(Session::drop_connection);
}

/// Milliseconds of a clock that only goes forward.
#[must_use]
pub fn now_ms() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes only into `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

impl Session {
    /// Closes the connection and forgets what is outstanding on it.
    pub fn drop_connection(&mut self) {
        if self.connected {
            let _keep = real::KeepErrno::new();
            let _ = fds::closing(self.fd);
            // SAFETY: the session's own descriptor.
            unsafe { real::close(self.fd) };
        }
        self.forget_connection();
    }

    fn forget_connection(&mut self) {
        self.connected = false;
        (self.start, self.end, self.unsent_len) = (0, 0, 0);
        self.requests.clear();
    }

    /// Forgets a descriptor of the shim's that the program itself closes.
    pub fn forget_descriptor(&mut self, fd: c_int) {
        if self.connected && self.fd == fd {
            self.forget_connection();
        }
        self.files.forget(fd);
    }

    /// Waits before the next attempt; a signal ends the wait early.
    pub fn back_off(&mut self) {
        self.backoff_ms = (self.backoff_ms * 2).clamp(FIRST_BACKOFF_MS, LAST_BACKOFF_MS);
        pause_ms(self.backoff_ms);
    }

    /// Whether read-ahead may use the connection: never waits for one that just failed.
    pub fn is_usable(&mut self, attached: &Attached) -> bool {
        self.connected || (now_ms() >= self.retry_at_ms && self.connect(attached).is_ok())
    }

    /// Makes the connection if there is none.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn connect(&mut self, attached: &Attached) -> Result<(), Trouble> {
        if self.connected {
            return Ok(());
        }
        let _keep = real::KeepErrno::new();
        let Some(name) = attached.map.endpoint() else {
            return Err(Trouble::Refused);
        };
        let connected = endpoint::connect(name, RECEIVE_MS);
        let Ok(fd) = connected else {
            self.retry_at_ms = now_ms() + i64::from(LAST_BACKOFF_MS);
            return Err(Trouble::Unavailable);
        };
        fds::mark_own(fd);
        (
            self.fd,
            self.connected,
            self.start,
            self.end,
            self.unsent_len,
        ) = (fd, true, 0, 0, 0);
        attached
            .map
            .header
            .stat_reconnects
            .fetch_add(1, Ordering::Relaxed);
        let greeted = self.greet(attached);
        if let Err(trouble) = greeted {
            self.drop_connection();
            self.retry_at_ms = now_ms() + i64::from(LAST_BACKOFF_MS);
            return Err(trouble);
        }
        self.heard_ms = now_ms();
        Ok(())
    }

    fn greet(&mut self, attached: &Attached) -> Result<(), Trouble> {
        let header = attached.map.header;
        let hello = Hello {
            system_identifier: header.system_identifier,
            lsn: header.start_lsn,
        }
        .encode();
        self.enqueue(&hello);
        self.flush(attached)?;
        let until = now_ms() + 2000;
        loop {
            if let Some(frame) = self.frame() {
                let reply = HelloReply::decode(&frame).map_err(|_| self.refuse(attached))?;
                let message = self.message(reply.payload as usize);
                if reply.payload as usize > MESSAGE_BYTES {
                    return Err(self.refuse(attached));
                }
                if let Some(message) = message {
                    return self.welcome(attached, &reply, message);
                }
            }
            if now_ms() > until || attached.interrupts.pending() {
                return Err(Trouble::Unavailable);
            }
            self.receive(attached, true)?;
        }
    }

    fn welcome(
        &mut self,
        attached: &Attached,
        reply: &HelloReply,
        message: (usize, usize),
    ) -> Result<(), Trouble> {
        let ours = attached.map.header.system_identifier;
        if reply.status == STATUS_PAGE && reply.system_identifier == ours {
            self.start = message.1;
            return Ok(());
        }
        if reply.status == STATUS_RETRY {
            return Err(Trouble::Unavailable);
        }
        report::line(format_args!(
            "the page server (system identifier {}) refused this cluster ({ours}): {}",
            reply.system_identifier,
            self.text(message)
        ));
        Err(Trouble::Refused)
    }

    /// Queues a request; [`Session::flush`] sends it.
    pub fn enqueue_request(&mut self, get: &GetPages) {
        let frame = get.encode();
        self.enqueue(&frame);
    }

    fn enqueue(&mut self, frame: &[u8; FRAME_BYTES]) {
        let end = self.unsent_len + FRAME_BYTES;
        if let Some(room) = self.unsent.get_mut(self.unsent_len..end) {
            room.copy_from_slice(frame);
            self.unsent_len = end;
        }
    }

    /// Sends what is queued. At most [`MAX_OUTSTANDING`] frames (3 kB) are ever unread by the server, so
    /// this does not wait for a server that waits for us to read.
    ///
    /// # Errors
    /// [`Trouble::Unavailable`] when the connection broke; it was dropped.
    pub fn flush(&mut self, attached: &Attached) -> Result<(), Trouble> {
        let mut sent = 0;
        let mut refused = 0;
        while let Some(rest) = self
            .unsent
            .get(sent..self.unsent_len)
            .filter(|rest| !rest.is_empty())
        {
            let _keep = real::KeepErrno::new();
            // SAFETY: the slice is valid; the socket is the session's.
            let wrote = unsafe {
                libc::send(
                    self.fd,
                    rest.as_ptr().cast(),
                    rest.len(),
                    libc::MSG_NOSIGNAL,
                )
            };
            if let Ok(wrote) = usize::try_from(wrote) {
                sent += wrote;
                continue;
            }
            refused += 1;
            let patient = matches!(real::errno(), libc::EINTR | libc::EAGAIN) && refused < 50;
            if !patient || attached.interrupts.pending() {
                self.drop_connection();
                return Err(Trouble::Unavailable);
            }
        }
        self.unsent_len = 0;
        Ok(())
    }

    /// Receives what is there, waiting up to [`RECEIVE_MS`] if `wait`.
    ///
    /// # Errors
    /// [`Trouble::Unavailable`] when the connection broke; it was dropped.
    pub fn receive(&mut self, _attached: &Attached, wait: bool) -> Result<Received, Trouble> {
        let _keep = real::KeepErrno::new();
        self.make_room();
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        let room = BUFFER_BYTES - self.end;
        // SAFETY: `room` bytes from `end` on are the buffer's, which the session's lock guards.
        let got = unsafe {
            libc::recv(
                self.fd,
                BUFFER.0.get().cast::<u8>().add(self.end).cast(),
                room,
                flags,
            )
        };
        match (usize::try_from(got), real::errno()) {
            (Ok(0), _) => {
                self.drop_connection();
                Err(Trouble::Unavailable)
            }
            (Ok(got), _) => {
                self.end += got;
                self.heard_ms = now_ms();
                Ok(Received::Some)
            }
            (Err(_), libc::EINTR | libc::EAGAIN) => {
                if wait && now_ms() - self.heard_ms > SILENCE_MS && self.requests.any() {
                    self.drop_connection();
                    return Err(Trouble::Unavailable);
                }
                Ok(Received::Nothing)
            }
            (Err(_), _) => {
                self.drop_connection();
                Err(Trouble::Unavailable)
            }
        }
    }

    /// Restarts the silence clock when something is asked of a quiet connection.
    pub fn expect_reply(&mut self) {
        if !self.requests.any() {
            self.heard_ms = now_ms();
        }
    }

    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if BUFFER_BYTES - self.end < LEAST_ROOM {
            // SAFETY: both ranges lie in the buffer, which the session's lock guards.
            unsafe {
                let buffer = BUFFER.0.get().cast::<u8>();
                std::ptr::copy(buffer.add(self.start), buffer, self.end - self.start);
            }
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    fn unread(&self) -> &'static [u8] {
        // SAFETY: the buffer is static and written only by `receive` and `make_room`, after which no
        // slice taken here is used any more.
        let buffer = unsafe { &*BUFFER.0.get() };
        buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn frame(&self) -> Option<[u8; FRAME_BYTES]> {
        self.unread().first_chunk::<FRAME_BYTES>().copied()
    }

    /// Where the payload behind the frame at the front lies, once it is there whole.
    fn message(&self, payload: usize) -> Option<(usize, usize)> {
        let from = self.start + FRAME_BYTES;
        (self.end >= from + payload).then_some((from, from + payload))
    }

    fn text(&self, (from, to): (usize, usize)) -> &'static str {
        // SAFETY: as in `unread`.
        let buffer = unsafe { &*BUFFER.0.get() };
        let bytes = buffer.get(from..to).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or("(a message that is not UTF-8)")
    }

    /// The server and we disagree: count it and start over.
    fn refuse(&mut self, attached: &Attached) -> Trouble {
        attached
            .map
            .header
            .stat_refused
            .fetch_add(1, Ordering::Relaxed);
        self.drop_connection();
        Trouble::Unavailable
    }

    /// Works through the replies received so far.
    ///
    /// # Errors
    /// [`Trouble::Unavailable`] when one of them answers nothing that was asked; the connection was
    /// dropped.
    ///
    /// # Safety
    /// The demand's target is valid.
    pub unsafe fn process(
        &mut self,
        attached: &Attached,
        mut demand: Option<&mut Demand<'_>>,
    ) -> Result<Replies, Trouble> {
        let mut replies = Replies::default();
        let mut run = Run::new();
        let verdict = loop {
            let Some(frame) = self.frame() else {
                break Ok(());
            };
            let Ok(reply) = PageReply::decode(&frame) else {
                break Err(());
            };
            let payload = reply.payload as usize;
            let sound = match reply.status {
                STATUS_PAGE => payload == BLOCK_BYTES,
                STATUS_ZERO => payload == 0,
                STATUS_RETRY | STATUS_ERROR => payload <= MESSAGE_BYTES,
                _ => false,
            };
            if !sound {
                break Err(());
            }
            let Some((from, to)) = self.message(payload) else {
                break Ok(());
            };
            let header = attached.map.header;
            let answered = self
                .requests
                .answer(&reply, attached.map.entries, header.start_lsn);
            let Some(answered) = answered else {
                break Err(());
            };
            let Some(segment) = attached.segment_of(answered.entry, reply.block) else {
                break Err(());
            };
            self.start = to;
            match reply.status {
                STATUS_PAGE | STATUS_ZERO => {
                    let counter = if answered.demanded {
                        &header.stat_fetched
                    } else {
                        &header.stat_prefetched
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    replies.pages = true;
                    if !run.takes(segment, reply.block) {
                        // SAFETY: the run points into the buffer; the caller vouches for the demand.
                        unsafe {
                            fill::settle(attached, &mut self.files, &run, demand.as_deref_mut())
                        };
                        run.count = 0;
                    }
                    let page = if reply.status == STATUS_ZERO {
                        ZERO_PAGE.as_ptr()
                    } else {
                        BUFFER.0.get().cast::<u8>().cast_const().wrapping_add(from)
                    };
                    run.push(segment, reply.block, page);
                }
                STATUS_RETRY => replies.retry |= answered.demanded,
                _ => {
                    // Read-ahead's failures are nobody's yet: whoever reads the block will ask again.
                    if answered.demanded {
                        replies.refused = true;
                        let text = self.text((from, to));
                        report::line(format_args!("the page server refused {reply:?}: {text}"));
                    }
                }
            }
        };
        if run.count > 0 {
            // SAFETY: as above.
            unsafe { fill::settle(attached, &mut self.files, &run, demand) };
        }
        if replies.pages {
            (self.backoff_ms, self.told) = (0, false);
        }
        verdict
            .map(|()| replies)
            .map_err(|()| self.refuse(attached))
    }

    /// Whether this trouble was reported already; until pages arrive again it is not repeated.
    pub fn tell_once(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}
