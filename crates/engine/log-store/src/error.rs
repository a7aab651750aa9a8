//! What a log store refuses, and why.

use std::io;
use std::path::PathBuf;

use pg_types::{Lsn, TimelineId};

/// A failed operation of a running store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An earlier write failed; what is on disk beyond the flushed LSN is unknown, so nothing more
    /// is acknowledged.
    #[error("the log store has stopped: {reason}")]
    Poisoned {
        /// The failure that stopped it.
        reason: String,
    },
    /// A file operation failed.
    #[error("{what} {}: {source}{}", path.display(), remedy(source))]
    Io {
        /// What was being done, such as "writing".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A higher promise stands in the way.
    #[error(transparent)]
    Fenced(#[from] wal_quorum::Fenced),
    /// The receiving session this belongs to was ended.
    #[error("receiving was stopped")]
    Stopped,
    /// WAL before the given bytes is not here.
    #[error(
        "WAL up to {wanted} is needed first, but this store's WAL of that history ends at {have}"
    )]
    Gap {
        /// End of what is here.
        have: Lsn,
        /// What should have been here.
        wanted: Lsn,
    },
    /// WAL that has been removed already.
    #[error("WAL from {wanted} has been removed; the oldest kept is {oldest}")]
    Removed {
        /// What was asked for.
        wanted: Lsn,
        /// Oldest LSN kept.
        oldest: Lsn,
    },
    /// A timeline that cannot follow this store's history.
    #[error("timeline {timeline} cannot begin here: {reason}")]
    BadTimeline {
        /// The timeline.
        timeline: TimelineId,
        /// Why not.
        reason: String,
    },
    /// A history text that is none.
    #[error(transparent)]
    HistoryText(#[from] pg_page::TimelineHistoryError),
    /// A history whose timelines do not rise.
    #[error(transparent)]
    History(#[from] wal_quorum::HistoryError),
    /// Bytes that are not WAL.
    #[error("these bytes are not WAL of this cluster: {0}")]
    NotWal(#[from] pg_wal::StreamError),
}

/// What a person should do about a failed file operation.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (hint: free space on that file system or make it larger; the log store then goes on, and \
             nothing that was acknowledged is lost)"
        }
        io::ErrorKind::PermissionDenied => {
            " (hint: give the user that the log store runs as access to it)"
        }
        _ => "",
    }
}

impl StoreError {
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.into();
        move |source| StoreError::Io { what, path, source }
    }
}

/// Why a store's directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No store was ever made here.
    #[error("{} is no log store: it has no file \"state\" (hint: `strandline import` and `strandline up` make the log stores of a new cluster. The directory of one of three was lost? Stop the cluster and copy the directory of the other store with the higher timeline, or on the same timeline the longer WAL; an empty one would have forgotten what it acknowledged)", dir.display())]
    NotAStore {
        /// The directory.
        dir: PathBuf,
    },
    /// Another process has it open.
    #[error("another log store process uses {}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The state file does not read.
    #[error("{} is damaged: {reason} (hint: restore this directory from another log store of the cluster)", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// WAL that was durable does not read.
    #[error(
        "{} is damaged at {lsn}: {reason}. This WAL was durable (up to {watermark}), so it is not a \
         torn tail (hint: put the file of the same name from another log store of this cluster in \
         its place, or restore it from a backup)", path.display()
    )]
    Corrupt {
        /// The segment file.
        path: PathBuf,
        /// The damaged record or page.
        lsn: Lsn,
        /// What is wrong there.
        reason: String,
        /// Durable WAL ended here.
        watermark: Lsn,
    },
    /// A segment file that should be there is not.
    #[error("{} is missing, but WAL was durable up to {watermark} (hint: copy it from another log store of this cluster)", path.display())]
    MissingSegment {
        /// The file.
        path: PathBuf,
        /// Durable WAL ended here.
        watermark: Lsn,
    },
    /// There is a store already.
    #[error("{} holds a log store already", dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// The WAL given to [`crate::seed()`] does not end where it was said to.
    #[error("the WAL given ends at {found}, not at {expected}")]
    SeedEnd {
        /// Where it should end.
        expected: Lsn,
        /// Where it ends.
        found: Lsn,
    },
    /// A file operation failed or a history does not read.
    #[error(transparent)]
    Store(#[from] StoreError),
}
