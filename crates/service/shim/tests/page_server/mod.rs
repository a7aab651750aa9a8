//! A page server that speaks the page wire from any source of pages, and misbehaves on demand.

#![allow(dead_code)] // Each test binary uses a part.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, PageReply, STATUS_ERROR, STATUS_PAGE, STATUS_RETRY,
    STATUS_ZERO,
};

/// Gives the page, or `None` when storage has none such.
pub type Source = dyn Fn(&GetPages, u32) -> Option<Vec<u8>> + Send + Sync;

/// How to misbehave: each is a chance in 1000 per page.
#[derive(Default)]
pub struct Faults {
    pub drop: AtomicU32,
    pub delay: AtomicU32,
    pub mismatch: AtomicU32,
    pub retry: AtomicU32,
    pub shuffle: AtomicBool,
    /// Answer every page with STATUS_ERROR.
    pub refuse: AtomicBool,
    /// Accept and greet, but answer nothing.
    pub mute: AtomicBool,
}

pub struct PageServer {
    pub socket: PathBuf,
    pub faults: Arc<Faults>,
    pub served: Arc<AtomicU64>,
    pub mismatches: Arc<AtomicU64>,
    source: Arc<Source>,
    system_identifier: u64,
    stop: Option<Arc<AtomicBool>>,
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % n
    }

    fn happens(&mut self, chance: &AtomicU32) -> bool {
        let chance = chance.load(Ordering::Relaxed);
        chance > 0 && self.below(1000) < chance
    }
}

impl PageServer {
    pub fn start(socket: &Path, system_identifier: u64, source: Arc<Source>) -> PageServer {
        let mut server = PageServer {
            socket: socket.to_owned(),
            faults: Arc::default(),
            served: Arc::default(),
            mismatches: Arc::default(),
            source,
            system_identifier,
            stop: None,
        };
        server.resume();
        server
    }

    /// Stops answering: the socket is gone and connections break.
    pub fn pause(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.store(true, Ordering::SeqCst);
            let _ = UnixStream::connect(&self.socket);
            let _ = std::fs::remove_file(&self.socket);
        }
    }

    pub fn resume(&mut self) {
        self.pause();
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        // The server under test may run as another user.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&self.socket, mode).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        self.stop = Some(stop.clone());
        let (source, faults) = (self.source.clone(), self.faults.clone());
        let (served, mismatches) = (self.served.clone(), self.mismatches.clone());
        let system_identifier = self.system_identifier;
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut connection = Connection {
                    stream: stream.unwrap(),
                    source: source.clone(),
                    faults: faults.clone(),
                    served: served.clone(),
                    mismatches: mismatches.clone(),
                    stop: stop.clone(),
                    dice: Dice(0x9E37_79B9 + number as u64 * 77),
                    system_identifier,
                };
                // A broken connection is how most of these end.
                thread::spawn(move || drop(connection.serve()));
            }
        });
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.pause();
    }
}

struct Connection {
    stream: UnixStream,
    source: Arc<Source>,
    faults: Arc<Faults>,
    served: Arc<AtomicU64>,
    mismatches: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    dice: Dice,
    system_identifier: u64,
}

impl Connection {
    fn frame(&mut self) -> std::io::Result<[u8; FRAME_BYTES]> {
        let mut frame = [0; FRAME_BYTES];
        let mut have = 0;
        while have < FRAME_BYTES {
            match self.stream.read(&mut frame[have..]) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => have += got,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.stop.load(Ordering::SeqCst) {
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(frame)
    }

    fn serve(&mut self) -> std::io::Result<()> {
        self.stream
            .set_read_timeout(Some(Duration::from_millis(20)))?;
        let hello = Hello::decode(&self.frame()?).unwrap();
        let known = hello.system_identifier == self.system_identifier;
        let message = if known { "" } else { "unknown cluster" };
        let welcome = HelloReply {
            status: if known { STATUS_PAGE } else { STATUS_ERROR },
            payload: message.len() as u32,
            system_identifier: self.system_identifier,
        };
        self.stream.write_all(&welcome.encode())?;
        self.stream.write_all(message.as_bytes())?;
        loop {
            let get = GetPages::decode(&self.frame()?).unwrap();
            while self.faults.mute.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                if self.stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
            }
            self.answer(&get)?;
        }
    }

    fn answer(&mut self, get: &GetPages) -> std::io::Result<()> {
        let mut blocks: Vec<u32> =
            (get.first_block..get.first_block + u32::from(get.count)).collect();
        if self.faults.shuffle.load(Ordering::Relaxed) {
            for at in (1..blocks.len()).rev() {
                blocks.swap(at, self.dice.below(at as u32 + 1) as usize);
            }
        }
        let mut out = Vec::with_capacity(blocks.len() * 8240);
        for block in blocks {
            let mut reply = PageReply {
                request_id: get.request_id,
                space: get.space,
                db: get.db,
                rel: get.rel,
                fork: get.fork,
                block,
                status: STATUS_PAGE,
                payload: 0,
                lsn: get.lsn,
            };
            let mut payload = Vec::new();
            if self.faults.refuse.load(Ordering::Relaxed) {
                reply.status = STATUS_ERROR;
                payload = b"told to refuse".to_vec();
            } else if self.dice.happens(&self.faults.retry) {
                reply.status = STATUS_RETRY;
            } else {
                match (self.source)(get, block) {
                    Some(page) if page.iter().all(|byte| *byte == 0) => reply.status = STATUS_ZERO,
                    Some(page) => payload = page,
                    None => reply.status = STATUS_ERROR,
                }
            }
            if self.dice.happens(&self.faults.mismatch) {
                self.mismatches.fetch_add(1, Ordering::Relaxed);
                // With another page's bytes: whoever believes it is found out.
                payload.fill(0x77);
                match self.dice.below(6) {
                    0 => reply.request_id = reply.request_id.wrapping_sub(1),
                    1 => reply.block = reply.block.wrapping_add(200),
                    2 => reply.lsn += 8,
                    3 => reply.rel += 1,
                    4 => reply.fork ^= 1,
                    _ => reply.request_id += 1000,
                }
            }
            reply.payload = payload.len() as u32;
            out.extend_from_slice(&reply.encode());
            out.extend_from_slice(&payload);
            self.served.fetch_add(1, Ordering::Relaxed);
            if self.dice.happens(&self.faults.delay) {
                self.stream.write_all(&out)?;
                out.clear();
                thread::sleep(Duration::from_millis(u64::from(self.dice.below(5))));
            }
            if self.dice.happens(&self.faults.drop) {
                let cut = self.dice.below(out.len().max(1) as u32) as usize;
                self.stream.write_all(&out[..cut])?;
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            if out.len() >= 128 * 1024 {
                self.stream.write_all(&out)?;
                out.clear();
            }
        }
        self.stream.write_all(&out)
    }
}

/// The shim library that cargo built next to this test.
pub fn shim_library() -> PathBuf {
    let mut directory = std::env::current_exe().unwrap();
    while directory.pop() {
        let library = directory.join("libstrandline_shim.so");
        if library.exists() {
            return library;
        }
    }
    panic!("libstrandline_shim.so was not built next to the tests");
}
