//! The map this process is attached to, and which paths it governs.
//!
//! **Invariant.** Either the process has a whole, checked map before `main` runs, or it passes every
//! call through (no [`ENV_MAP`]), or it ends. A server that ran without its map would read zeros.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_char;
use shim_abi::map::{ENV_MAP, MapEntry, tablespace_directory};
use shim_abi::view::MapView;

use crate::path::{self, PathBuffer, RELATION_SEGMENT_BLOCKS, SLRU_SEGMENT_PAGES, SegmentName};
use crate::postgres::{self, Interrupts};
use crate::{real, report, session};

/// What a process knows of its incarnation.
pub struct Attached {
    /// The block states.
    pub map: MapView,
    /// PostgreSQL's own flags of pending cancels.
    pub interrupts: Interrupts,
    /// Version directory of tablespaces.
    pub version: &'static str,
    /// Device and inode of the data directory, once known.
    directory: Option<(u64, u64)>,
}

struct Slot(UnsafeCell<MaybeUninit<Attached>>);

// SAFETY: written once, before READY is set with Release; read only after READY was seen with Acquire.
unsafe impl Sync for Slot {}

static READY: AtomicBool = AtomicBool::new(false);
static ATTACHED: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));

/// The map, unless this process passes everything through.
#[must_use]
pub fn attached() -> Option<&'static Attached> {
    if !READY.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: READY says it was written, and it is never written again.
    Some(unsafe { (*ATTACHED.0.get()).assume_init_ref() })
}

/// A governed segment file: an entry of the map and which of its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Index of the entry.
    pub entry: u32,
    /// Segment of it.
    pub number: u32,
    /// Blocks in a segment file.
    pub blocks: u32,
}

impl Segment {
    /// The entry's first block in this segment.
    #[must_use]
    pub const fn first_block(&self) -> u32 {
        self.number.saturating_mul(self.blocks)
    }

    /// Whether it is an SLRU's.
    #[must_use]
    pub const fn is_slru(&self) -> bool {
        self.blocks == SLRU_SEGMENT_PAGES
    }
}

impl Attached {
    /// The entry of that index; entries come from the map's own lookups, so it is there.
    #[must_use]
    pub fn entry(&self, index: u32) -> Option<&'static MapEntry> {
        self.map.entries.get(index as usize)
    }

    /// The segment holding `block` of an entry.
    #[must_use]
    pub fn segment_of(&self, entry: u32, block: u32) -> Option<Segment> {
        let blocks = if self.entry(entry)?.space == 0 {
            SLRU_SEGMENT_PAGES
        } else {
            RELATION_SEGMENT_BLOCKS
        };
        Some(Segment {
            entry,
            number: block / blocks,
            blocks,
        })
    }

    /// The path of a segment file.
    #[must_use]
    pub fn path_of(&self, segment: &Segment) -> Option<PathBuffer> {
        let entry = self.entry(segment.entry)?;
        let name = SegmentName {
            space: entry.space,
            db: entry.db,
            rel: entry.rel,
            fork: entry.fork,
            segment: segment.number,
        };
        PathBuffer::of(&name, self.map.data_directory().to_bytes(), self.version)
    }

    /// The governed segment that `path` names, if it names one.
    ///
    /// # Safety
    /// `path` is null or NUL-terminated.
    #[must_use]
    pub unsafe fn governs(&self, path: *const c_char) -> Option<Segment> {
        if path.is_null() {
            return None;
        }
        // SAFETY: not null, and the caller's promise.
        let text = unsafe { CStr::from_ptr(path) }.to_bytes();
        let directory = self.map.data_directory().to_bytes();
        let (relative, absolute) = match text.first()? {
            b'/' if directory.is_empty() => return None,
            b'/' => (text.strip_prefix(directory)?.strip_prefix(b"/")?, true),
            _ => (text, false),
        };
        let name = path::parse(relative)?;
        let entry = self.map.find(name.space, name.db, name.rel, name.fork)?;
        if !absolute && !self.is_in_data_directory() {
            return None;
        }
        let blocks = if name.space == 0 {
            SLRU_SEGMENT_PAGES
        } else {
            RELATION_SEGMENT_BLOCKS
        };
        Some(Segment {
            entry,
            number: name.segment,
            blocks,
        })
    }

    /// Programs that PostgreSQL starts inherit the shim; a relative path of theirs means ours only here.
    fn is_in_data_directory(&self) -> bool {
        self.directory
            .is_none_or(|directory| identity(c".") == Some(directory))
    }
}

fn identity(path: &CStr) -> Option<(u64, u64)> {
    let _keep = real::KeepErrno::new();
    // SAFETY: an all-zero stat is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, stat writes only into `stat`.
    (unsafe { libc::stat(path.as_ptr(), &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Attaches to the map that the environment names. Runs before `main`.
fn attach(path: &CStr) {
    // SAFETY: the path is NUL-terminated.
    let fd = unsafe { real::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        report::fatal(format_args!(
            "could not open the map {path:?}: errno {}",
            real::errno()
        ));
    }
    let map = match MapView::map(fd, true) {
        Ok(map) => map,
        Err(why) => report::fatal(format_args!("the map {path:?} is not usable: {why}")),
    };
    // SAFETY: opened above.
    unsafe { real::close(fd) };
    let Some(version) = tablespace_directory(map.header.major) else {
        report::fatal(format_args!(
            "the map {path:?} is for unknown PostgreSQL {}",
            map.header.major
        ))
    };
    if map.endpoint().is_none_or(|endpoint| endpoint.is_empty()) {
        report::fatal(format_args!("the map {path:?} names no page server"));
    }
    let directory = match map.data_directory() {
        unknown if unknown.is_empty() => None,
        directory => match identity(directory) {
            None => report::fatal(format_args!(
                "the map's data directory {directory:?} is not there"
            )),
            known => known,
        },
    };
    let attached = Attached {
        map,
        interrupts: postgres::interrupts(),
        version,
        directory,
    };
    // SAFETY: before `main`, with one thread, and READY is not set yet.
    unsafe { (*ATTACHED.0.get()).write(attached) };
    READY.store(true, Ordering::Release);
    // SAFETY: the handler is a plain function that stays loaded.
    unsafe { libc::pthread_atfork(None, None, Some(session::forget_in_child)) };
}

#[cfg_attr(test, allow(dead_code))] // A unit test binary is no PostgreSQL process.
extern "C" fn constructor() {
    let _keep = real::KeepErrno::new();
    // ENV_MAP with a NUL behind it, without the heap.
    let mut name = [0u8; 64];
    for (to, from) in name.iter_mut().take(63).zip(ENV_MAP.bytes()) {
        *to = from;
    }
    // SAFETY: the name is NUL-terminated; nothing else runs yet that could change the environment.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return;
    }
    // SAFETY: getenv returned a NUL-terminated string.
    attach(unsafe { CStr::from_ptr(value) });
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
