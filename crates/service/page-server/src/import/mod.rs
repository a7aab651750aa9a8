//! Importing a cleanly stopped cluster of stock PostgreSQL.
//!
//! **Invariant.** An imported store holds every page, byte for byte, and all other state of the cluster
//! as of E0, the end of its shutdown checkpoint record; or it does not exist. Everything is written
//! under a temporary name and renamed at the end, so that an import which was interrupted at any
//! point (Ctrl-C, power) leaves nothing that looks complete.
//!
//! What is not imported, because it is not part of the database's contents: contents of unlogged
//! and temporary relations, `pg_internal.init`, statistics, replication slots, configuration.

mod error;
mod files;
mod relations;
mod slru;
mod source;
mod wal_end;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster_state::{EncodedChange, StateChange};
use page_store::{BlockHistory, IngestBatch, PageOrigin, PageStore, StoreIdentity, StoreOptions};
use pg_types::{Lsn, PageKey, PgMajor, SegmentSize, TimelineId};

pub use error::ImportError;

use error::disk;
use source::SourceCluster;

/// What to import, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPlan {
    /// Data directory of the stopped cluster. It is only read.
    pub pgdata: PathBuf,
    /// Directory of the page store to make; it must not exist, or be empty.
    pub store_dir: PathBuf,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportProgress {
    /// Bytes of relation and SLRU files read.
    pub done: u64,
    /// Bytes to read.
    pub total: u64,
}

/// What was imported: all that the log stores and the first compute node need to go on from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedCluster {
    /// System identifier.
    pub system_identifier: u64,
    /// Major.
    pub major: PgMajor,
    /// WAL segment size.
    pub segment_size: SegmentSize,
    /// Whether pages carry checksums.
    pub data_checksums: bool,
    /// Timeline of the shutdown checkpoint.
    pub timeline: TimelineId,
    /// Text of the timeline's history file, empty for a first timeline.
    pub history_text: String,
    /// E0, the end of the shutdown checkpoint record: the store's pages are as of this LSN.
    pub lsn: Lsn,
    /// Start of that record.
    pub last_record: Lsn,
    /// First byte of `wal`: the start of the segment that holds `last_record`.
    pub wal_start: Lsn,
    /// WAL from `wal_start` to `lsn`.
    pub wal: Vec<u8>,
    /// Pages imported, all-zero ones not counted.
    pub pages: u64,
    /// Forks imported.
    pub forks: u64,
}

/// During the import nobody reads.
struct NoHistory;

impl BlockHistory for NoHistory {
    fn origin(&self, _key: &PageKey, _lsn: Lsn) -> PageOrigin {
        PageOrigin::ONLY
    }
}

/// Imports the cluster of `plan`; `progress` is called every few megabytes.
///
/// # Errors
/// [`ImportError`], which names the file and the remedy. Nothing is left behind then, except the
/// temporary directory after a failure of the disk; the next attempt removes it.
pub fn import_cluster(
    plan: &ImportPlan,
    mut progress: impl FnMut(ImportProgress),
) -> Result<ImportedCluster, ImportError> {
    refuse_occupied(&plan.store_dir)?;
    let source = SourceCluster::open(&plan.pgdata)?;
    let wal_end = wal_end::read(&source)?;
    let found = files::find(&source)?;
    let slrus = slru::find(&source)?;
    let total = found.bytes() + slrus.iter().map(slru::SlruFiles::bytes).sum::<u64>();

    let temporary = temporary_name(&plan.store_dir);
    if temporary.exists() {
        std::fs::remove_dir_all(&temporary).map_err(disk("remove", &temporary))?;
    }
    let control = &source.control;
    let identity = StoreIdentity {
        system_identifier: control.system_identifier(),
        major: control.major(),
        segment_size: control.segment_size(),
        data_checksums: control.data_checksums(),
    };
    PageStore::create(&temporary, &identity)?;
    let store = PageStore::open(&temporary, StoreOptions::default(), Arc::new(NoHistory))?;
    let mut done = 0;
    let mut report = |bytes: u64| {
        done += bytes;
        progress(ImportProgress { done, total });
    };
    let mut images = store.image_writer(wal_end.lsn)?;
    let mut changes = StateChange::of_control_file(control);
    for files in &slrus {
        changes.push(slru::copy(files, &mut images, &mut report)?);
    }
    changes.extend(relations::copy(
        &found,
        identity.data_checksums,
        &mut images,
        &mut report,
    )?);
    let pages = images.pages();
    images.finish()?;
    let forks = found.forks.len() as u64;
    changes.extend(found.changes);

    let mut batch = IngestBatch::new();
    let mut encoded = EncodedChange::default();
    for change in changes {
        change.encode(&mut encoded);
        batch.meta(encoded.key(), wal_end.lsn, encoded.value());
    }
    store.ingest(&mut batch)?;
    store.advance(wal_end.lsn, wal_end.last_record, wal_end.timeline)?;
    // The watermark moves only here: a store without it is not at E0 and says so when it is opened.
    store.flush()?;
    drop(store);
    publish(&temporary, &plan.store_dir)?;
    Ok(ImportedCluster {
        system_identifier: identity.system_identifier,
        major: identity.major,
        segment_size: identity.segment_size,
        data_checksums: identity.data_checksums,
        timeline: wal_end.timeline,
        history_text: wal_end.history_text,
        lsn: wal_end.lsn,
        last_record: wal_end.last_record,
        wal_start: wal_end.wal_start,
        wal: wal_end.wal,
        pages,
        forks,
    })
}

fn temporary_name(store_dir: &Path) -> PathBuf {
    let mut name = store_dir.file_name().unwrap_or_default().to_owned();
    name.push(".importing");
    store_dir.with_file_name(name)
}

fn refuse_occupied(store_dir: &Path) -> Result<(), ImportError> {
    match std::fs::read_dir(store_dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(ImportError::Occupied {
                path: store_dir.to_owned(),
            }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(disk("read", store_dir)(error)),
    }
}

/// Gives the finished store its name; durable before this returns.
fn publish(temporary: &Path, store_dir: &Path) -> Result<(), ImportError> {
    // Replaces an empty directory.
    std::fs::rename(temporary, store_dir).map_err(disk("rename", temporary))?;
    let parent = match store_dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(disk("synchronise", parent))
}
