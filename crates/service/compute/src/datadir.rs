//! Building the data directory of an incarnation from a skeleton.
//!
//! **Invariant.** The directory is what stock PostgreSQL would find at the start LSN, except that
//! the content of relation files is missing: each is a sparse file of the right size whose blocks
//! the page shim fetches. Everything PostgreSQL reads past the shim is complete before it starts:
//! SLRU pages, init forks (copied by `read` when unlogged relations are reset), relation maps,
//! two-phase files, `pg_control`, and the WAL segment with the checkpoint. A missing SLRU page is an
//! error at start, a missing directory one at the first checkpoint.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster_state::Skeleton;
use pg_types::{
    BLCKSZ, ForkNumber, Lsn, Oid, PgMajor, RELSEG_BLOCKS, RelFileLocator, RelFork, Slru,
};
use shim_abi::builder::{MapBuildError, MapBuilder};

use crate::checkpoint::{StartCheckpoint, TimelineSwitch, segment_header};
use crate::leftover::Ended;
use crate::page_reader::{PageRange, PageReadError, PageReader};
use crate::recycle::{Remains, forsake};

/// Directories that every data directory has (PostgreSQL does not create them at start).
const DIRECTORIES: [&str; 22] = [
    "base",
    "global",
    "pg_commit_ts",
    "pg_dynshmem",
    "pg_logical",
    "pg_logical/mappings",
    "pg_logical/snapshots",
    "pg_multixact",
    "pg_multixact/members",
    "pg_multixact/offsets",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_tblspc",
    "pg_twophase",
    "pg_wal",
    "pg_wal/archive_status",
    "pg_xact",
];

/// Why a data directory could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A file could not be made.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A page that must be there from the start could not be read.
    #[error(transparent)]
    Pages(#[from] PageReadError),
    /// The shim's map could not be written.
    #[error("{0}")]
    Map(MapBuildError),
    /// The storage node sent bytes that are no hexadecimal text.
    #[error("the skeleton's {what} is not hexadecimal")]
    Hex {
        /// Which part.
        what: String,
    },
}

/// What an incarnation begins with, besides the skeleton.
#[derive(Debug)]
pub struct Incarnation<'a> {
    /// Everything but pages.
    pub skeleton: &'a Skeleton,
    /// Where the timeline begins.
    pub switch: TimelineSwitch,
    /// The checkpoint record and the control file.
    pub checkpoint: &'a StartCheckpoint,
    /// Text of the new timeline's history file.
    pub history: &'a str,
    /// LSN of the first byte of `wal`, in the segment of the switch.
    pub wal_from: Lsn,
    /// The log from `wal_from` to the switch.
    pub wal: &'a [u8],
    /// Where pages are read.
    pub pages: &'a rpc::Endpoint,
    /// Most fetched blocks to keep; zero for no limit.
    pub cache_blocks: u64,
    /// How long a read may wait for the storage node, in milliseconds.
    pub read_timeout_ms: u64,
}

/// Paths of a built incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltDirectory {
    /// The data directory.
    pub pgdata: PathBuf,
    /// The shim's map file.
    pub map: PathBuf,
}

/// How long to wait for a storage node that is still starting.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds `<compute>/pgdata`, `<compute>/shim.map` and `<compute>/tablespaces`, using again what an
/// earlier incarnation left there unless `ended` says that somebody may still write to it.
///
/// # Errors
/// [`DataDirError`] naming the file.
pub fn build(
    compute: &Path,
    incarnation: &Incarnation<'_>,
    ended: &Ended,
) -> Result<BuiltDirectory, DataDirError> {
    let remains = Remains::survey(compute, ended).map_err(io_at(compute))?;
    let built = build_with(compute, incarnation, remains);
    if built.is_err() {
        forsake(compute);
    }
    built
}

fn build_with(
    compute: &Path,
    incarnation: &Incarnation<'_>,
    remains: Remains,
) -> Result<BuiltDirectory, DataDirError> {
    let built = BuiltDirectory {
        pgdata: compute.join("pgdata"),
        map: compute.join("shim.map"),
    };
    let mut tree = Tree {
        root: &built.pgdata,
        major: incarnation.skeleton.major,
        remains,
    };
    tree.make_directory(tree.root)?;
    for name in DIRECTORIES {
        tree.make_directory(&tree.root.join(name))?;
    }
    if tree.major >= PgMajor::V17 {
        tree.make_directory(&tree.root.join("pg_wal/summaries"))?;
    }
    tree.write_file(&tree.root.join("PG_VERSION"), tree.version().as_bytes())?;
    tree.tablespaces(incarnation.skeleton, &compute.join("tablespaces"))?;
    tree.databases(incarnation.skeleton)?;
    tree.relations(incarnation.skeleton)?;
    tree.small_files(incarnation.skeleton)?;
    tree.eager_pages(incarnation)?;
    tree.wal(incarnation)?;
    write_map(&built, incarnation)?;
    // Last: without it the directory is no cluster.
    tree.write_file(
        &tree.root.join("global/pg_control"),
        &incarnation.checkpoint.control.encode(),
    )?;
    tree.remains.sweep().map_err(io_at(&built.pgdata))?;
    Ok(built)
}

struct Tree<'a> {
    root: &'a Path,
    major: PgMajor,
    remains: Remains,
}

impl Tree<'_> {
    fn make_directory(&mut self, path: &Path) -> Result<(), DataDirError> {
        self.remains.make_directory(path).map_err(io_at(path))
    }

    fn create(&mut self, path: &Path) -> Result<File, DataDirError> {
        self.remains.create(path).map_err(io_at(path))
    }

    fn write_file(&mut self, path: &Path, bytes: &[u8]) -> Result<(), DataDirError> {
        self.create(path)?
            .write_all_at(bytes, 0)
            .map_err(io_at(path))
    }

    fn version(&self) -> String {
        format!("{}\n", self.major)
    }

    /// Directory of a database in a tablespace.
    fn database(&self, spc: Oid, db: Oid) -> PathBuf {
        match spc {
            RelFileLocator::GLOBAL_TABLESPACE => self.root.join("global"),
            RelFileLocator::DEFAULT_TABLESPACE => self.root.join("base").join(db.to_string()),
            _ => self
                .root
                .join("pg_tblspc")
                .join(spc.to_string())
                .join(self.major.tablespace_directory())
                .join(db.to_string()),
        }
    }

    /// First segment file of a fork.
    fn relation(&self, fork: &RelFork) -> PathBuf {
        let RelFileLocator { spc, db, rel } = fork.locator;
        self.database(spc, db)
            .join(format!("{rel}{}", fork.fork.suffix()))
    }

    /// Links of tablespaces lead into the incarnation's own directory: the original location may be
    /// on a machine that is gone, and two incarnations must never share files.
    fn tablespaces(&mut self, skeleton: &Skeleton, storage: &Path) -> Result<(), DataDirError> {
        if !skeleton.tablespaces.is_empty() {
            self.make_directory(storage)?;
        }
        for tablespace in &skeleton.tablespaces {
            let link = self.root.join("pg_tblspc").join(tablespace.oid.to_string());
            if tablespace.location.is_empty() {
                self.make_directory(&link)?;
            } else {
                let target = storage.join(tablespace.oid.to_string());
                self.make_directory(&target)?;
                symlink(&target, &link).map_err(io_at(&link))?;
            }
            self.make_directory(&link.join(self.major.tablespace_directory()))?;
        }
        Ok(())
    }

    fn databases(&mut self, skeleton: &Skeleton) -> Result<(), DataDirError> {
        let mut made = BTreeSet::new();
        for database in &skeleton.databases {
            let directory = self.database(database.spc, database.db);
            if made.insert((database.spc, database.db)) {
                self.make_directory(&directory)?;
            }
            self.write_file(&directory.join("PG_VERSION"), self.version().as_bytes())?;
        }
        // A database has a directory in another tablespace as soon as one relation is there.
        for relation in &skeleton.relations {
            let RelFileLocator { spc, db, .. } = relation.fork.locator;
            if spc != RelFileLocator::GLOBAL_TABLESPACE && made.insert((spc, db)) {
                self.make_directory(&self.database(spc, db))?;
            }
        }
        Ok(())
    }

    /// Sparse files of the right sizes, in segments of 1 GiB.
    fn relations(&mut self, skeleton: &Skeleton) -> Result<(), DataDirError> {
        for relation in &skeleton.relations {
            let path = self.relation(&relation.fork);
            let mut left = relation.blocks;
            let mut segment = 0u32;
            loop {
                let path = segment_path(&path, segment);
                let blocks = left.min(RELSEG_BLOCKS);
                let file = self.create(&path)?;
                if blocks > 0 {
                    file.set_len(u64::from(blocks) * BLCKSZ as u64)
                        .map_err(io_at(&path))?;
                }
                left -= blocks;
                if left == 0 {
                    break;
                }
                segment += 1;
            }
        }
        Ok(())
    }

    fn small_files(&mut self, skeleton: &Skeleton) -> Result<(), DataDirError> {
        for map in &skeleton.relation_maps {
            let path = self.database(map.spc, map.db).join("pg_filenode.map");
            self.write_file(&path, &decode_hex(&map.bytes, "relation map")?)?;
        }
        for file in &skeleton.two_phase {
            let path = self.root.join("pg_twophase").join(&file.name);
            self.write_file(&path, &decode_hex(&file.bytes, "two-phase file")?)?;
        }
        if let Some(origins) = &skeleton.replication_origins {
            let path = self.root.join("pg_logical/replorigin_checkpoint");
            self.write_file(&path, &decode_hex(origins, "replication origins")?)?;
        }
        Ok(())
    }

    /// SLRU pages and init forks, read in one pipelined pass.
    fn eager_pages(&mut self, incarnation: &Incarnation<'_>) -> Result<(), DataDirError> {
        let skeleton = incarnation.skeleton;
        let mut targets: Vec<Target> = Vec::new();
        let mut ranges: Vec<PageRange> = Vec::new();
        for range in &skeleton.slrus {
            ranges.push(PageRange::slru(range.slru, range.first, range.last));
            targets.push(Target::Slru(range.slru));
        }
        for relation in &skeleton.relations {
            if relation.fork.fork == ForkNumber::Init && relation.blocks > 0 {
                ranges.push(PageRange::fork(relation.fork, relation.blocks));
                targets.push(Target::Fork(self.relation(&relation.fork)));
            }
        }
        if ranges.iter().all(|range| range.count == 0) {
            return Ok(());
        }
        let mut reader = PageReader::connect(
            incarnation.pages,
            incarnation.checkpoint.control.system_identifier(),
            skeleton.lsn,
            PATIENCE,
        )?;
        let mut open: Option<(PathBuf, File)> = None;
        let mut segments = BTreeSet::new();
        reader.read(&ranges, |index, block, page| {
            let Some(target) = targets.get(index) else {
                return Ok(());
            };
            let (path, offset) = self.place(target, block);
            let file = match open.take() {
                Some((at, file)) if at == path => file,
                // Init forks were made with the other relations.
                _ if matches!(target, Target::Slru(_)) && segments.insert(path.clone()) => {
                    self.create(&path)?
                }
                _ => reopen(&path)?,
            };
            file.write_all_at(page, offset).map_err(io_at(&path))?;
            open = Some((path, file));
            Ok(())
        })
    }

    /// File and offset of a page.
    fn place(&self, target: &Target, block: u32) -> (PathBuf, u64) {
        let (path, per_segment) = match target {
            Target::Slru(slru) => {
                let name = format!("{:04X}", block / Slru::PAGES_PER_SEGMENT);
                (
                    self.root.join(slru.directory()).join(name),
                    Slru::PAGES_PER_SEGMENT,
                )
            }
            Target::Fork(path) => (segment_path(path, block / RELSEG_BLOCKS), RELSEG_BLOCKS),
        };
        (path, u64::from(block % per_segment) * BLCKSZ as u64)
    }

    /// The segment in which the timeline begins, with everything known of it, and the history file.
    fn wal(&mut self, incarnation: &Incarnation<'_>) -> Result<(), DataDirError> {
        let skeleton = incarnation.skeleton;
        let (size, timeline) = (skeleton.segment_size, incarnation.switch.timeline);
        let placed = &incarnation.checkpoint.placed;
        let directory = self.root.join("pg_wal");
        let first = size.segment_of(placed.from);
        let last = size.segment_of(Lsn(placed.end.0.saturating_sub(1)).max(placed.from));
        let put = |at: Lsn, bytes: &[u8]| -> Result<(), DataDirError> {
            let mut at = at;
            let mut bytes = bytes;
            while !bytes.is_empty() {
                let number = size.segment_of(at);
                let room =
                    usize::try_from(size.start_of(number + 1).since(at)).unwrap_or(usize::MAX);
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                let path = directory.join(size.file_name(timeline, number));
                let file = reopen(&path)?;
                file.write_all_at(now, size.offset_of(at))
                    .map_err(io_at(&path))?;
                at = at.advance(now.len() as u64);
                bytes = later;
            }
            Ok(())
        };
        for number in first..=last {
            let path = directory.join(size.file_name(timeline, number));
            self.create(&path)?
                .set_len(size.bytes())
                .map_err(io_at(&path))?;
        }
        let start = size.start_of(first);
        if incarnation.wal_from > start {
            let sysid = incarnation.checkpoint.control.system_identifier();
            put(
                start,
                &segment_header(start, skeleton.major, sysid, size, timeline),
            )?;
        }
        put(incarnation.wal_from, incarnation.wal)?;
        put(placed.from, &placed.bytes)?;
        self.write_file(
            &directory.join(timeline.history_file_name()),
            incarnation.history.as_bytes(),
        )
    }
}

enum Target {
    Slru(Slru),
    Fork(PathBuf),
}

fn write_map(built: &BuiltDirectory, incarnation: &Incarnation<'_>) -> Result<(), DataDirError> {
    let skeleton = incarnation.skeleton;
    let mut map = MapBuilder::new(
        incarnation.checkpoint.control.system_identifier(),
        skeleton.major.number(),
        skeleton.lsn.0,
        incarnation.pages.to_string(),
        incarnation.cache_blocks,
        incarnation.read_timeout_ms,
    );
    map.data_directory(&built.pgdata);
    for relation in &skeleton.relations {
        // Init forks are complete already.
        if relation.fork.fork != ForkNumber::Init {
            let RelFileLocator { spc, db, rel } = relation.fork.locator;
            map.add(spc, db, rel, relation.fork.fork as u32, relation.blocks);
        }
    }
    map.write(&built.map).map_err(DataDirError::Map)
}

fn segment_path(first: &Path, segment: u32) -> PathBuf {
    if segment == 0 {
        return first.to_owned();
    }
    let mut path = first.as_os_str().to_owned();
    path.push(format!(".{segment}"));
    PathBuf::from(path)
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> DataDirError + '_ {
    move |source| DataDirError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Opens a file that was made before.
fn reopen(path: &Path) -> Result<File, DataDirError> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(io_at(path))
}

/// The bytes that `text` spells in hexadecimal.
///
/// # Errors
/// [`DataDirError::Hex`] naming `what`.
pub fn decode_hex(text: &str, what: &str) -> Result<Vec<u8>, DataDirError> {
    let fail = || DataDirError::Hex {
        what: what.to_owned(),
    };
    if !text.len().is_multiple_of(2) {
        return Err(fail());
    }
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        })
        .collect();
    let digits = digits.ok_or_else(fail)?;
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect())
}
