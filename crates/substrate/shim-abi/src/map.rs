//! The map file: block states shared by every process of one PostgreSQL incarnation.
//!
//! ```text
//! 0        MapHeader                       (4096 bytes)
//! entries  [MapEntry; entry_count]         sorted by states_start
//! table    [AtomicU32; table_slots]        open addressing: 0 = empty, else entry index + 1
//! states   [AtomicU32; state_count]        one word a block, for blocks 0..base_blocks of each entry
//! ```
//!
//! Only forks (and SLRUs) that existed at the start LSN have an entry: whatever PostgreSQL creates
//! later is local from its first byte and never consults the map. `base_blocks` only ever falls
//! (truncate, drop): a block at or beyond it is local, so a reused relation number can never receive
//! pages of its predecessor.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// `SLMAP001` in little-endian bytes.
pub const MAP_MAGIC: u64 = u64::from_le_bytes(*b"SLMAP001");
/// Layout version.
pub const MAP_VERSION: u32 = 1;
/// Bytes reserved for [`MapHeader`].
pub const HEADER_BYTES: usize = 4096;
/// Environment variable naming the map file; without it the shim does nothing.
pub const ENV_MAP: &str = "STRANDLINE_SHIM_MAP";

/// The content is in storage only.
pub const STATE_ABSENT: u32 = 0;
/// A process is writing the storage's copy into the local file.
pub const STATE_FILLING: u32 = 1;
/// The local file holds the storage's copy; it may be evicted.
pub const STATE_PRESENT: u32 = 2;
/// PostgreSQL wrote the block in this incarnation; it is never replaced nor evicted (invariant 4).
pub const STATE_WRITTEN: u32 = 3;
/// A process is punching the block out of the local file.
pub const STATE_EVICTING: u32 = 4;
/// Bits of a state word that hold the state.
pub const STATE_MASK: u32 = 0x7;
/// Set by readers, cleared by the evictor's clock hand.
pub const STATE_REFERENCED: u32 = 0x8;
/// One unit of the eviction count in a state word's upper 28 bits. It is bumped by each eviction, so
/// a reader that saw the same word before and after its `pread` knows the bytes were there throughout.
pub const STATE_SEQUENCE: u32 = 0x10;

/// First bytes of the map file. All offsets are from the start of the file.
#[repr(C)]
#[derive(Debug)]
pub struct MapHeader {
    /// [`MAP_MAGIC`].
    pub magic: u64,
    /// [`MAP_VERSION`].
    pub version: u32,
    /// Number of the PostgreSQL major.
    pub major: u32,
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// The LSN at which every page is read.
    pub start_lsn: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Entries.
    pub entry_count: u32,
    /// Slots of the hash table, a power of two.
    pub table_slots: u32,
    /// Offset of the entries.
    pub entries_offset: u64,
    /// Offset of the hash table.
    pub table_offset: u64,
    /// Offset of the state words.
    pub states_offset: u64,
    /// State words.
    pub state_count: u64,
    /// Fetched blocks to keep at most; zero for no limit.
    pub cache_limit_blocks: u64,
    /// Milliseconds a read waits for an unreachable storage node before it fails with EIO; zero waits forever.
    pub read_timeout_ms: u64,
    /// Blocks now PRESENT.
    pub present: AtomicU64,
    /// The evictor's position in the state words.
    pub clock_hand: AtomicU64,
    /// Pages fetched because they were read.
    pub stat_fetched: AtomicU64,
    /// Pages fetched ahead of a read.
    pub stat_prefetched: AtomicU64,
    /// Pages evicted.
    pub stat_evicted: AtomicU64,
    /// Reads of blocks that were local.
    pub stat_hits: AtomicU64,
    /// Replies that were dropped because the block had become local meanwhile.
    pub stat_dropped: AtomicU64,
    /// Reconnections to the storage node.
    pub stat_reconnects: AtomicU64,
    /// Reads that failed.
    pub stat_errors: AtomicU64,
    /// Processes waiting for the storage node now.
    pub waiting: AtomicU64,
    /// Replies refused because they answered nothing that was asked.
    pub stat_refused: AtomicU64,
    /// Endpoint of the page server, NUL-terminated: `unix:/path` or `tcp:host:port`.
    pub endpoint: [u8; 512],
    /// The data directory's absolute path, NUL-terminated. Relative paths are then governed only where
    /// the working directory is this one, and absolute paths below it are governed too. Empty: every
    /// relative path is taken to be in the data directory.
    pub data_directory: [u8; 1024],
}

/// A fork (or SLRU) that existed at the start LSN.
#[repr(C)]
#[derive(Debug)]
pub struct MapEntry {
    /// Tablespace; zero for an SLRU.
    pub space: u32,
    /// Database.
    pub db: u32,
    /// Relation file number; an SLRU's number for an SLRU.
    pub rel: u32,
    /// Fork number.
    pub fork: u32,
    /// Blocks still governed by the storage's copy; only ever falls.
    pub base_blocks: AtomicU32,
    /// Blocks at the start LSN: state words this entry owns.
    pub initial_blocks: u32,
    /// Index of block 0's state word.
    pub states_start: u64,
}

/// Directory below a tablespace of PostgreSQL `major` (`TABLESPACE_VERSION_DIRECTORY`); `None` for a
/// major that Strandline does not know.
#[must_use]
pub const fn tablespace_directory(major: u32) -> Option<&'static str> {
    match major {
        14 => Some("PG_14_202107181"),
        15 => Some("PG_15_202209061"),
        16 => Some("PG_16_202307071"),
        17 => Some("PG_17_202406281"),
        18 => Some("PG_18_202506291"),
        _ => None,
    }
}

/// The hash that places (space, db, rel, fork) in the table; probing is linear.
#[must_use]
pub const fn key_hash(space: u32, db: u32, rel: u32, fork: u32) -> u32 {
    // Multiply-xorshift rounds: cheap, and adjacent relation numbers must not cluster.
    let mut hash = 0x9E37_79B9_7F4A_7C15u64;
    let mut word = 0;
    let words = [space, db, rel, fork];
    while word < words.len() {
        hash ^= words[word] as u64;
        hash = hash.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 29;
        word += 1;
    }
    (hash >> 32) as u32
}

const _: () = assert!(size_of::<MapHeader>() <= HEADER_BYTES);
const _: () = assert!(size_of::<MapEntry>() == 32);
