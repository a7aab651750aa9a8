//! Writing a map for a new incarnation, and reading a running incarnation's statistics.
//!
//! **Invariant.** A map is written whole under a temporary name and renamed, so that a PostgreSQL
//! process never maps half of one; and it is never rewritten while a server uses it, because the state
//! words are the only record of which local blocks are real.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::map::{HEADER_BYTES, MAP_MAGIC, MAP_VERSION, MapEntry, MapHeader, key_hash};
use crate::view::{MapInvalid, MapView};

/// Why a map was not written.
#[derive(Debug)]
pub enum MapBuildError {
    /// The endpoint is longer than the map's field for it, or holds a NUL.
    Endpoint(String),
    /// The data directory's path is longer than the map's field for it, or holds a NUL.
    DataDirectory(PathBuf),
    /// A fork was added twice.
    Duplicate {
        /// Tablespace.
        space: u32,
        /// Database.
        db: u32,
        /// Relation file number, or SLRU.
        rel: u32,
        /// Fork.
        fork: u32,
    },
    /// More forks than a map can hold.
    TooManyForks(usize),
    /// Writing failed.
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl fmt::Display for MapBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapBuildError::Endpoint(endpoint) => {
                write!(
                    f,
                    "page server endpoint does not fit a shim map: {endpoint}"
                )
            }
            MapBuildError::DataDirectory(path) => {
                write!(
                    f,
                    "data directory does not fit a shim map: {}",
                    path.display()
                )
            }
            MapBuildError::Duplicate {
                space,
                db,
                rel,
                fork,
            } => {
                write!(
                    f,
                    "fork {space}/{db}/{rel} fork {fork} was added twice to a shim map"
                )
            }
            MapBuildError::TooManyForks(forks) => {
                write!(f, "{forks} forks are more than a shim map holds")
            }
            MapBuildError::Io { path, source } => {
                write!(f, "could not write shim map {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for MapBuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MapBuildError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Collects the forks that exist at an incarnation's start LSN and writes its map.
#[derive(Debug, Clone)]
pub struct MapBuilder {
    system_identifier: u64,
    major: u32,
    start_lsn: u64,
    endpoint: String,
    cache_limit_blocks: u64,
    read_timeout_ms: u64,
    data_directory: PathBuf,
    forks: Vec<Fork>,
}

#[derive(Debug, Clone, Copy)]
struct Fork {
    space: u32,
    db: u32,
    rel: u32,
    fork: u32,
    blocks: u32,
}

impl MapBuilder {
    /// Starts a map. `endpoint` is the page server's (`unix:/path` or `tcp:host:port`);
    /// `cache_limit_blocks` = 0 keeps every fetched block; `read_timeout_ms` = 0 waits forever.
    #[must_use]
    pub fn new(
        system_identifier: u64,
        major: u32,
        start_lsn: u64,
        endpoint: impl Into<String>,
        cache_limit_blocks: u64,
        read_timeout_ms: u64,
    ) -> MapBuilder {
        MapBuilder {
            system_identifier,
            major,
            start_lsn,
            endpoint: endpoint.into(),
            cache_limit_blocks,
            read_timeout_ms,
            data_directory: PathBuf::new(),
            forks: Vec::new(),
        }
    }

    /// Names the data directory (absolute path). With it, relative paths are governed only in processes
    /// whose working directory it is, and absolute paths below it are governed too: give it whenever
    /// PostgreSQL may run other programs (`archive_command`, `COPY … PROGRAM`).
    pub fn data_directory(&mut self, path: impl Into<PathBuf>) -> &mut MapBuilder {
        self.data_directory = path.into();
        self
    }

    /// Adds a fork (or, with `space` and `db` zero, the SLRU `rel`) of `blocks` blocks, all of them in
    /// storage. A fork without blocks needs no entry and is left out.
    pub fn add(
        &mut self,
        space: u32,
        db: u32,
        rel: u32,
        fork: u32,
        blocks: u32,
    ) -> &mut MapBuilder {
        if blocks > 0 {
            self.forks.push(Fork {
                space,
                db,
                rel,
                fork,
                blocks,
            });
        }
        self
    }

    /// Writes the map to `path`, replacing what was there. The state words are a hole: all absent.
    ///
    /// # Errors
    /// [`MapBuildError`] when a field does not fit, a fork is there twice, or writing fails.
    pub fn write(&self, path: &Path) -> Result<(), MapBuildError> {
        let header = self.header()?;
        self.refuse_duplicates()?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        self.write_to(&temporary, &header)
            .and_then(|()| fs::rename(&temporary, path))
            .map_err(|source| MapBuildError::Io {
                path: path.to_owned(),
                source,
            })
    }

    fn table_slots(&self) -> Result<u32, MapBuildError> {
        let too_many = MapBuildError::TooManyForks(self.forks.len());
        let forks = u32::try_from(self.forks.len())
            .ok()
            .filter(|forks| *forks < 1 << 29);
        forks
            .map(|forks| (forks.max(4) * 2).next_power_of_two())
            .ok_or(too_many)
    }

    fn header(&self) -> Result<HeaderImage, MapBuildError> {
        let slots = self.table_slots()?;
        let entries_offset = HEADER_BYTES as u64;
        let table_offset = entries_offset + self.forks.len() as u64 * size_of::<MapEntry>() as u64;
        let states_offset = (table_offset + u64::from(slots) * 4).next_multiple_of(4096);
        let state_count: u64 = self.forks.iter().map(|fork| u64::from(fork.blocks)).sum();
        let endpoint = self.endpoint.as_bytes();
        if endpoint.len() >= 512 || endpoint.contains(&0) {
            return Err(MapBuildError::Endpoint(self.endpoint.clone()));
        }
        let directory = self.data_directory.as_os_str().as_bytes();
        if directory.len() >= 1024 || directory.contains(&0) {
            return Err(MapBuildError::DataDirectory(self.data_directory.clone()));
        }
        let mut image = HeaderImage {
            bytes: [0; HEADER_BYTES],
            states_offset,
            state_count,
            slots,
        };
        image.put(
            std::mem::offset_of!(MapHeader, magic),
            &MAP_MAGIC.to_le_bytes(),
        );
        image.put(
            std::mem::offset_of!(MapHeader, version),
            &MAP_VERSION.to_le_bytes(),
        );
        image.put(
            std::mem::offset_of!(MapHeader, major),
            &self.major.to_le_bytes(),
        );
        for (offset, value) in [
            (
                std::mem::offset_of!(MapHeader, system_identifier),
                self.system_identifier,
            ),
            (std::mem::offset_of!(MapHeader, start_lsn), self.start_lsn),
            (
                std::mem::offset_of!(MapHeader, file_bytes),
                states_offset + state_count * 4,
            ),
            (
                std::mem::offset_of!(MapHeader, entries_offset),
                entries_offset,
            ),
            (std::mem::offset_of!(MapHeader, table_offset), table_offset),
            (
                std::mem::offset_of!(MapHeader, states_offset),
                states_offset,
            ),
            (std::mem::offset_of!(MapHeader, state_count), state_count),
            (
                std::mem::offset_of!(MapHeader, cache_limit_blocks),
                self.cache_limit_blocks,
            ),
            (
                std::mem::offset_of!(MapHeader, read_timeout_ms),
                self.read_timeout_ms,
            ),
        ] {
            image.put(offset, &value.to_le_bytes());
        }
        let count = self.forks.len() as u32;
        image.put(
            std::mem::offset_of!(MapHeader, entry_count),
            &count.to_le_bytes(),
        );
        image.put(
            std::mem::offset_of!(MapHeader, table_slots),
            &slots.to_le_bytes(),
        );
        image.put(std::mem::offset_of!(MapHeader, endpoint), endpoint);
        image.put(std::mem::offset_of!(MapHeader, data_directory), directory);
        Ok(image)
    }

    fn refuse_duplicates(&self) -> Result<(), MapBuildError> {
        let mut seen = HashSet::with_capacity(self.forks.len());
        for &Fork {
            space,
            db,
            rel,
            fork,
            ..
        } in &self.forks
        {
            if !seen.insert((space, db, rel, fork)) {
                return Err(MapBuildError::Duplicate {
                    space,
                    db,
                    rel,
                    fork,
                });
            }
        }
        Ok(())
    }

    fn write_to(&self, path: &Path, header: &HeaderImage) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        out.write_all(&header.bytes)?;
        let mask = header.slots - 1;
        let mut table = vec![0u32; header.slots as usize];
        let mut start = 0u64;
        for (index, fork) in self.forks.iter().enumerate() {
            for field in [
                fork.space,
                fork.db,
                fork.rel,
                fork.fork,
                fork.blocks,
                fork.blocks,
            ] {
                out.write_all(&field.to_le_bytes())?;
            }
            out.write_all(&start.to_le_bytes())?;
            start += u64::from(fork.blocks);
            let mut slot = key_hash(fork.space, fork.db, fork.rel, fork.fork) & mask;
            while table.get(slot as usize).is_some_and(|taken| *taken != 0) {
                slot = (slot + 1) & mask;
            }
            if let Some(free) = table.get_mut(slot as usize) {
                *free = index as u32 + 1;
            }
        }
        for slot in &table {
            out.write_all(&slot.to_le_bytes())?;
        }
        out.flush()?;
        out.get_ref()
            .set_len(header.states_offset + header.state_count * 4)
    }
}

struct HeaderImage {
    bytes: [u8; HEADER_BYTES],
    states_offset: u64,
    state_count: u64,
    slots: u32,
}

impl HeaderImage {
    fn put(&mut self, offset: usize, value: &[u8]) {
        if let Some(field) = self.bytes.get_mut(offset..offset + value.len()) {
            field.copy_from_slice(value);
        }
    }
}

/// What the shims of one incarnation have done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapStatistics {
    /// Blocks that can be governed: the cluster's size at the start LSN.
    pub blocks: u64,
    /// Limit of fetched blocks; zero for none.
    pub cache_limit_blocks: u64,
    /// Fetched blocks that the local files hold now.
    pub present: u64,
    /// Pages fetched because they were read.
    pub fetched: u64,
    /// Pages fetched ahead of a read.
    pub prefetched: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Reads of blocks that were local.
    pub hits: u64,
    /// Replies dropped because the block had become local meanwhile.
    pub dropped: u64,
    /// Replies refused because they answered nothing that was asked.
    pub refused: u64,
    /// Reconnections to the storage node.
    pub reconnects: u64,
    /// Reads that failed.
    pub errors: u64,
    /// Processes waiting for the storage node now.
    pub waiting: u64,
}

impl MapStatistics {
    /// Share of block reads that were local, 0 to 1; `None` before the first read.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.fetched;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }
}

/// A read-only look at a map that PostgreSQL processes may be using.
#[derive(Debug)]
pub struct MapReader {
    view: MapView,
}

impl MapReader {
    /// Maps the map at `path`. The mapping stays for the life of the process: keep the reader.
    ///
    /// # Errors
    /// [`MapInvalid`] when it cannot be opened or is no map.
    pub fn open(path: &Path) -> Result<MapReader, MapInvalid> {
        let file = File::open(path)
            .map_err(|error| MapInvalid::Os(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(MapReader {
            view: MapView::map(file.as_raw_fd(), false)?,
        })
    }

    /// The counters now.
    #[must_use]
    pub fn statistics(&self) -> MapStatistics {
        let header = self.view.header;
        MapStatistics {
            blocks: header.state_count,
            cache_limit_blocks: header.cache_limit_blocks,
            present: header.present.load(Ordering::Relaxed),
            fetched: header.stat_fetched.load(Ordering::Relaxed),
            prefetched: header.stat_prefetched.load(Ordering::Relaxed),
            evicted: header.stat_evicted.load(Ordering::Relaxed),
            hits: header.stat_hits.load(Ordering::Relaxed),
            dropped: header.stat_dropped.load(Ordering::Relaxed),
            refused: header.stat_refused.load(Ordering::Relaxed),
            reconnects: header.stat_reconnects.load(Ordering::Relaxed),
            errors: header.stat_errors.load(Ordering::Relaxed),
            waiting: header.waiting.load(Ordering::Relaxed),
        }
    }

    /// State word of a block, `None` where it is local: no entry, or at or beyond `base_blocks`.
    #[must_use]
    pub fn state(&self, space: u32, db: u32, rel: u32, fork: u32, block: u32) -> Option<u32> {
        let index = self.view.find(space, db, rel, fork)?;
        let entry = self.view.entries.get(index as usize)?;
        if block >= entry.base_blocks.load(Ordering::SeqCst) {
            return None;
        }
        Some(self.view.word(entry, block)?.load(Ordering::SeqCst))
    }

    /// The LSN at which pages are read.
    #[must_use]
    pub fn start_lsn(&self) -> u64 {
        self.view.header.start_lsn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::STATE_ABSENT;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("shim-map-{}-{name}", std::process::id()))
    }

    #[test]
    fn every_fork_added_is_found_and_absent() {
        let path = scratch("found");
        let mut builder = MapBuilder::new(7, 15, 0x100, "unix:/run/pages.sock", 10, 20);
        for rel in 0..5000 {
            builder.add(1663, 5, 16384 + rel, rel % 3, rel % 7);
        }
        builder
            .add(0, 0, 1, 0, 3)
            .data_directory("/srv/pgdata")
            .write(&path)
            .unwrap();
        let reader = MapReader::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        for rel in 0..5000u32 {
            for block in 0..8 {
                let state = reader.state(1663, 5, 16384 + rel, rel % 3, block);
                assert_eq!(
                    state,
                    (block < rel % 7).then_some(STATE_ABSENT),
                    "{rel} {block}"
                );
            }
            assert_eq!(reader.state(1663, 5, 16384 + rel, 3, 0), None);
        }
        assert_eq!(
            reader.view.endpoint().unwrap().to_bytes(),
            b"unix:/run/pages.sock"
        );
        assert_eq!(reader.view.data_directory().to_bytes(), b"/srv/pgdata");
        assert_eq!(reader.start_lsn(), 0x100);
        assert_eq!(reader.statistics().cache_limit_blocks, 10);
        for (index, entry) in reader.view.entries.iter().enumerate() {
            let last = entry.states_start + u64::from(entry.initial_blocks) - 1;
            assert_eq!(reader.view.owner(entry.states_start), Some(index as u32));
            assert_eq!(reader.view.owner(last), Some(index as u32));
        }
        assert_eq!(reader.view.owner(reader.view.header.state_count), None);
    }

    #[test]
    fn a_map_without_forks_is_valid() {
        let path = scratch("empty");
        MapBuilder::new(7, 17, 1, "unix:/x", 0, 0)
            .write(&path)
            .unwrap();
        let reader = MapReader::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(reader.state(1663, 5, 1, 0, 0), None);
        assert_eq!(reader.statistics().hit_ratio(), None);
    }

    #[test]
    fn a_fork_added_twice_is_refused() {
        let mut builder = MapBuilder::new(7, 17, 1, "unix:/x", 0, 0);
        builder.add(1663, 5, 9, 0, 1).add(1663, 5, 9, 0, 2);
        let error = builder.write(&scratch("twice")).unwrap_err();
        assert!(
            matches!(error, MapBuildError::Duplicate { rel: 9, .. }),
            "{error}"
        );
    }

    #[test]
    fn damaged_maps_are_refused() {
        let path = scratch("damaged");
        MapBuilder::new(7, 17, 1, "unix:/x", 0, 0)
            .add(1663, 5, 9, 0, 4)
            .write(&path)
            .unwrap();
        let good = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            MapReader::open(&path).map(|_| ()).unwrap_err()
        };
        assert!(matches!(
            refused(b"short"),
            MapInvalid::Truncated { bytes: 5, .. }
        ));
        assert!(matches!(
            refused(&good[..good.len() - 1]),
            MapInvalid::Truncated { .. }
        ));
        let mut bad = good.clone();
        bad[0] ^= 1;
        assert!(matches!(refused(&bad), MapInvalid::Magic(_)));
        let mut bad = good.clone();
        bad[8] = 9;
        assert_eq!(refused(&bad), MapInvalid::Version(9));
        let mut bad = good.clone();
        bad[HEADER_BYTES + 20] = 5; // initial_blocks beyond the state words
        assert_eq!(refused(&bad), MapInvalid::Entry(0));
        let mut bad = good;
        let table = std::mem::offset_of!(MapHeader, table_offset);
        bad[table + 6] = 1;
        assert_eq!(refused(&bad), MapInvalid::Part("table slots"));
        fs::remove_file(&path).unwrap();
    }
}
