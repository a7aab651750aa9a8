//! What can go wrong, by operation. Every message about the disk names the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pg_types::{Lsn, PageKey};

/// An operation on the store's directory failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source} (hint: {})", self.remedy())]
pub struct DiskError {
    /// What was tried.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The operating system's answer.
    pub source: io::Error,
}

impl DiskError {
    pub(crate) fn new(action: &'static str, path: &Path, source: io::Error) -> DiskError {
        DiskError {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// What a person should do.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free space on that file system, then start the storage node again: it resumes from \
                 what is on disk and nothing is lost, because the log stores keep the log"
            }
            io::ErrorKind::PermissionDenied => {
                "give the user that the storage node runs as access to it, then start it again"
            }
            io::ErrorKind::NotFound => {
                "restore the file or directory, or check that the configured path is the right one"
            }
            _ => {
                "check that disk, then start the storage node again: it resumes from what is on disk \
                 and nothing is lost, because the log stores keep the log"
            }
        }
    }
}

/// A file holds bytes that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} is corrupt at offset {offset}: {what} (hint: {remedy})")]
pub struct Corruption {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// What a person should do.
    pub remedy: &'static str,
}

/// What to do about a damaged layer file.
pub(crate) const LAYER_REMEDY: &str = "restore this file from a copy of the store taken later than \
     it was written (layer files never change), or import the cluster again from a backup";

/// What to do about a damaged manifest.
pub(crate) const MANIFEST_REMEDY: &str = "restore the file named manifest and the layer files it \
     lists from one copy of the store, or import the cluster again from a backup; do not delete it: \
     without it the layer files are removed as unreferenced";

/// Why a store was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// There is one.
    #[error("{path} holds a page store already (hint: open it, or choose another directory)")]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory has no manifest.
    #[error(
        "{path} holds no page store (it has no file named manifest) (hint: import a cluster into it first)"
    )]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("{path} is in use by another storage node (hint: stop that one first)")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file was written by a newer release.
    #[error(
        "{path} has format version {found}, this release reads up to {known} (hint: use the release that wrote it, or a later one)"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The manifest or the index of a layer file is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why changes were not taken.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// An earlier write failed.
    #[error("the page store takes no more changes, because it could not write: {0}")]
    Poisoned(Arc<DiskError>),
    /// Changes must come in LSN order.
    #[error("a change at {lsn} came after one at {last}; changes must come in LSN order")]
    OutOfOrder {
        /// The change.
        lsn: Lsn,
        /// The LSN before it.
        last: Lsn,
    },
    /// The change was taken before, and applying it twice would spoil the page.
    #[error("a change at {lsn} came again: everything up to {applied} has been ingested already")]
    AlreadyApplied {
        /// The change.
        lsn: Lsn,
        /// How far the store is.
        applied: Lsn,
    },
    /// `advance` below changes that were ingested, or backwards.
    #[error("cannot advance to {lsn}: changes up to {last} have been ingested")]
    AdvanceBelow {
        /// Where to.
        lsn: Lsn,
        /// Highest LSN ingested or announced.
        last: Lsn,
    },
    /// A metadata key is too long.
    #[error("a metadata key of {len} bytes at {lsn} is longer than 64 bytes")]
    MetaKeyTooLong {
        /// Its length.
        len: usize,
        /// LSN of the change.
        lsn: Lsn,
    },
    /// More bytes than one call can take.
    #[error("a batch of {bytes} bytes is too large; at most 1 GiB per batch")]
    BatchTooLarge {
        /// Bytes of the batch.
        bytes: usize,
    },
}

/// Why not everything ingested is durable now.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A write failed.
    #[error("the page store could not write: {0}")]
    Poisoned(Arc<DiskError>),
    /// A batch was ingested but `advance` was not called within the time.
    #[error("changes up to {ingested} are ingested but only {applied} is announced as whole")]
    Unfinished {
        /// Highest LSN ingested.
        ingested: Lsn,
        /// Highest LSN announced.
        applied: Lsn,
    },
    /// The store is being closed.
    #[error("the page store is being closed")]
    Closing,
}

/// Why waiting for an LSN ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time is over.
    #[error("the log was ingested only up to {applied} after waiting {waited:?} for {wanted}")]
    Timeout {
        /// The LSN waited for.
        wanted: Lsn,
        /// How far ingestion came.
        applied: Lsn,
        /// How long was waited.
        waited: Duration,
    },
    /// It will not come: ingestion has ended.
    #[error("{wanted} will not be ingested, the store stopped at {applied}: {cause}")]
    Poisoned {
        /// The LSN waited for.
        wanted: Lsn,
        /// How far ingestion came.
        applied: Lsn,
        /// Why it ended.
        cause: Arc<DiskError>,
    },
}

/// Why a page was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetPageError {
    /// Versions that old were never stored.
    #[error(
        "cannot read {key} at {lsn}: the oldest LSN kept is {oldest}; read at {oldest} or later"
    )]
    TooOld {
        /// The page.
        key: PageKey,
        /// LSN asked for.
        lsn: Lsn,
        /// Oldest LSN that can be read.
        oldest: Lsn,
    },
    /// The log was not ingested that far yet.
    #[error("cannot read {key} at {lsn} yet: the log has been ingested up to {applied}")]
    NotApplied {
        /// The page.
        key: PageKey,
        /// LSN asked for.
        lsn: Lsn,
        /// How far ingestion came.
        applied: Lsn,
    },
    /// A layer file that the page needs is damaged.
    #[error("cannot read {key}: {source}")]
    Corrupt {
        /// The page.
        key: PageKey,
        /// The damage.
        source: Corruption,
    },
    /// A layer file that the page needs cannot be read.
    #[error("cannot read {key}: {source}")]
    Disk {
        /// The page.
        key: PageKey,
        /// The failure.
        source: DiskError,
    },
    /// A change of the page cannot be applied.
    #[error("cannot read {key}: its change at {at} cannot be applied: {source}")]
    Replay {
        /// The page.
        key: PageKey,
        /// End of the record.
        at: Lsn,
        /// The failure.
        source: ReplayError,
    },
    /// Copies of copies without end.
    #[error("cannot read {key}: its content is a copy of a copy, more than {limit} deep")]
    TooManyCopies {
        /// The page.
        key: PageKey,
        /// Copies followed.
        limit: u32,
    },
}

/// Why a change cannot be applied to its page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The mini-record is malformed.
    #[error(transparent)]
    Mini(#[from] pg_wal::MiniError),
    /// The record within it is malformed.
    #[error(transparent)]
    Record(#[from] pg_wal::RecordError),
    /// Redo refused.
    #[error(transparent)]
    Redo(#[from] pg_redo::RedoError),
    /// A stored image has not the size of a page.
    #[error("a page image has {0} bytes")]
    ImageSize(usize),
}

/// Why pages were not written to image layers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageWriteError {
    /// The same page came twice.
    #[error("{key} was given twice for the image layer at {lsn}")]
    Duplicate {
        /// The page.
        key: PageKey,
        /// LSN of the layer.
        lsn: Lsn,
    },
    /// Import puts pages at one LSN below everything ingested.
    #[error("cannot add images at {lsn}: the store has ingested the log up to {applied} already")]
    AlreadyApplied {
        /// LSN of the images.
        lsn: Lsn,
        /// How far the store is.
        applied: Lsn,
    },
    /// An earlier write failed.
    #[error("the page store takes no more pages, because it could not write: {0}")]
    Poisoned(Arc<DiskError>),
    /// The files written cannot be read back.
    #[error(transparent)]
    Reopen(#[from] OpenError),
    /// A file operation failed.
    #[error("{0}")]
    Disk(Arc<DiskError>),
}
