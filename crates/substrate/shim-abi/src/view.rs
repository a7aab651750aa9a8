//! A mapped map file.
//!
//! **Invariant.** A [`MapView`] exists only over a mapping whose every offset, count and entry was
//! checked to lie inside it; otherwise a damaged map would make PostgreSQL read or write foreign memory.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::map::{HEADER_BYTES, MAP_MAGIC, MAP_VERSION, MapEntry, MapHeader, key_hash};

/// Why a file is not a usable map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapInvalid {
    /// Shorter than its header, or than the header says.
    Truncated {
        /// Bytes there are.
        bytes: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The magic is not [`MAP_MAGIC`].
    Magic(u64),
    /// The layout version is not [`MAP_VERSION`].
    Version(u32),
    /// A part lies outside the file, or is misaligned.
    Part(&'static str),
    /// An entry's state words lie outside the map.
    Entry(u32),
    /// A system call failed with this errno.
    Os(i32),
}

impl fmt::Display for MapInvalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapInvalid::Truncated { bytes, needed } => {
                write!(f, "it has {bytes} bytes where {needed} are needed")
            }
            MapInvalid::Magic(magic) => write!(f, "its magic {magic:#x} is not a shim map's"),
            MapInvalid::Version(version) => {
                write!(f, "its layout version {version} is not {MAP_VERSION}")
            }
            MapInvalid::Part(part) => write!(f, "its {part} lie outside the file"),
            MapInvalid::Entry(entry) => write!(f, "entry {entry} has state words outside the file"),
            MapInvalid::Os(errno) => write!(f, "the system refused it (errno {errno})"),
        }
    }
}

impl std::error::Error for MapInvalid {}

/// The parts of a mapped map file.
#[derive(Debug, Clone, Copy)]
pub struct MapView {
    /// First bytes of the file.
    pub header: &'static MapHeader,
    /// Entries, sorted by `states_start`.
    pub entries: &'static [MapEntry],
    /// Hash table over the entries' keys.
    pub table: &'static [AtomicU32],
    /// State words.
    pub states: &'static [AtomicU32],
}

fn part(
    base: *const u8,
    file_bytes: u64,
    offset: u64,
    count: u64,
    size: u64,
    name: &'static str,
) -> Result<*const u8, MapInvalid> {
    let end = count
        .checked_mul(size)
        .and_then(|bytes| bytes.checked_add(offset));
    match end {
        Some(end) if end <= file_bytes && offset.is_multiple_of(8) => {
            Ok(base.wrapping_add(offset as usize))
        }
        _ => Err(MapInvalid::Part(name)),
    }
}

impl MapView {
    /// Maps the open file `fd` shared and checks it. The mapping stays for the life of the process.
    ///
    /// # Errors
    /// [`MapInvalid`] when the file is no map or cannot be mapped.
    pub fn map(fd: i32, writable: bool) -> Result<MapView, MapInvalid> {
        // SAFETY: an all-zero stat is a valid stat, and fstat writes only into it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
            return Err(MapInvalid::Os(last_errno()));
        }
        let bytes = stat.st_size as u64;
        if bytes < HEADER_BYTES as u64 {
            return Err(MapInvalid::Truncated {
                bytes,
                needed: HEADER_BYTES as u64,
            });
        }
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a fresh mapping of the whole file, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(MapInvalid::Os(last_errno()));
        }
        // SAFETY: the mapping above has `bytes` bytes and is never unmapped.
        unsafe { MapView::check(base.cast::<u8>(), bytes) }
    }

    /// # Safety
    /// `base` points at `bytes` mapped bytes (at least [`HEADER_BYTES`]) that stay mapped.
    unsafe fn check(base: *const u8, bytes: u64) -> Result<MapView, MapInvalid> {
        // SAFETY: page-aligned, at least a header long, and any bit pattern is a valid MapHeader.
        let header: &'static MapHeader = unsafe { &*base.cast::<MapHeader>() };
        if header.magic != MAP_MAGIC {
            return Err(MapInvalid::Magic(header.magic));
        }
        if header.version != MAP_VERSION {
            return Err(MapInvalid::Version(header.version));
        }
        if header.file_bytes > bytes {
            return Err(MapInvalid::Truncated {
                bytes,
                needed: header.file_bytes,
            });
        }
        if !header.table_slots.is_power_of_two() || header.table_slots <= header.entry_count {
            return Err(MapInvalid::Part("table slots"));
        }
        let (entry_count, slots) = (u64::from(header.entry_count), u64::from(header.table_slots));
        let entries = part(
            base,
            bytes,
            header.entries_offset,
            entry_count,
            32,
            "entries",
        )?;
        let table = part(base, bytes, header.table_offset, slots, 4, "table slots")?;
        let states = part(
            base,
            bytes,
            header.states_offset,
            header.state_count,
            4,
            "state words",
        )?;
        // SAFETY: `part` checked extent and alignment; any bit pattern is valid for these types.
        let view = unsafe {
            MapView {
                header,
                entries: std::slice::from_raw_parts(entries.cast(), entry_count as usize),
                table: std::slice::from_raw_parts(table.cast(), slots as usize),
                states: std::slice::from_raw_parts(states.cast(), header.state_count as usize),
            }
        };
        let mut next = 0;
        for (index, entry) in view.entries.iter().enumerate() {
            let end = entry
                .states_start
                .checked_add(u64::from(entry.initial_blocks));
            let inside = end.is_some_and(|end| end <= header.state_count);
            let base_ok = entry.base_blocks.load(Ordering::Relaxed) <= entry.initial_blocks;
            if !inside || !base_ok || entry.states_start < next {
                return Err(MapInvalid::Entry(index as u32));
            }
            next = end.unwrap_or(u64::MAX);
        }
        Ok(view)
    }

    /// Index of the entry of a fork (or SLRU), if it existed at the start LSN.
    #[must_use]
    pub fn find(&self, space: u32, db: u32, rel: u32, fork: u32) -> Option<u32> {
        let mask = self.table.len().wrapping_sub(1);
        let mut slot = key_hash(space, db, rel, fork) as usize & mask;
        for _ in 0..self.table.len() {
            let index = self
                .table
                .get(slot)?
                .load(Ordering::Relaxed)
                .checked_sub(1)?;
            let entry = self.entries.get(index as usize)?;
            if (entry.space, entry.db, entry.rel, entry.fork) == (space, db, rel, fork) {
                return Some(index);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// Index of the entry that owns state word `word`.
    #[must_use]
    pub fn owner(&self, word: u64) -> Option<u32> {
        let after = self
            .entries
            .partition_point(|entry| entry.states_start <= word);
        let index = after.checked_sub(1)?;
        let entry = self.entries.get(index)?;
        (word - entry.states_start < u64::from(entry.initial_blocks)).then_some(index as u32)
    }

    /// State word of `block` of `entry`; `None` at or beyond the entry's initial size.
    #[must_use]
    pub fn word(&self, entry: &MapEntry, block: u32) -> Option<&'static AtomicU32> {
        if block >= entry.initial_blocks {
            return None;
        }
        self.states
            .get((entry.states_start + u64::from(block)) as usize)
    }

    /// The page server's endpoint.
    #[must_use]
    pub fn endpoint(&self) -> Option<&'static CStr> {
        CStr::from_bytes_until_nul(&self.header.endpoint).ok()
    }

    /// The data directory, empty when unknown.
    #[must_use]
    pub fn data_directory(&self) -> &'static CStr {
        CStr::from_bytes_until_nul(&self.header.data_directory).unwrap_or_default()
    }
}

fn last_errno() -> i32 {
    // SAFETY: errno's location is always valid in the calling thread.
    unsafe { *libc::__errno_location() }
}
