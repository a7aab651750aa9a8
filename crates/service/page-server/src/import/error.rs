//! Why a cluster is not imported.

use std::io;
use std::path::{Path, PathBuf};

use pg_page::ControlFileError;
use pg_types::{BlockNumber, Lsn};

/// Why a cluster is not imported; the message names the file and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not a data directory.
    #[error(
        "{path} is no PostgreSQL data directory: {missing} is missing (hint: name the directory that initdb made)"
    )]
    NoCluster {
        /// The directory given.
        path: PathBuf,
        /// What it lacks.
        missing: &'static str,
    },
    /// A server runs on it.
    #[error(
        "a server (process {pid}) is running on {path} (hint: stop it first: pg_ctl stop -m fast -D {path})"
    )]
    Running {
        /// The data directory.
        path: PathBuf,
        /// Its postmaster.
        pid: u32,
    },
    /// The cluster was not stopped cleanly.
    #[error(
        "{path} was not shut down cleanly (its state is \"{state}\") (hint: start and stop it once with its own PostgreSQL: pg_ctl start -D {path} && pg_ctl stop -m fast -D {path})"
    )]
    Unclean {
        /// The data directory.
        path: PathBuf,
        /// State in the control file.
        state: String,
    },
    /// It is a standby.
    #[error(
        "{path} is a standby (hint: promote it (pg_ctl promote -D {path}), stop it, and import it then)"
    )]
    Standby {
        /// The data directory.
        path: PathBuf,
    },
    /// It is a base backup that was never started.
    #[error(
        "{path} is a base backup that has not been recovered (it has a backup_label) (hint: start and stop it once with its own PostgreSQL)"
    )]
    Backup {
        /// The data directory.
        path: PathBuf,
    },
    /// The control file cannot be used.
    #[error("{path}: {source}")]
    ControlFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ControlFileError,
    },
    /// A tablespace's directory is not there.
    #[error(
        "tablespace {oid} lies in {path}, which cannot be read ({source}) (hint: mount it, or correct the link in pg_tblspc)"
    )]
    Tablespace {
        /// Its OID.
        oid: u32,
        /// Where the link leads.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A page's checksum does not match.
    #[error(
        "{path}, block {block}: page checksum {computed:04X} differs from the stored {stored:04X} (hint: the cluster is damaged: restore it from a backup before importing it)"
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Block of the fork.
        block: BlockNumber,
        /// What the page says.
        stored: u16,
        /// What its bytes give.
        computed: u16,
    },
    /// A small file is damaged.
    #[error(
        "{path} is damaged: {reason} (hint: restore it from a backup before importing the cluster)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The shutdown checkpoint is not in the WAL.
    #[error(
        "the shutdown checkpoint at {lsn} that pg_control names is not in {path}: {reason} (hint: start and stop the cluster once with its own PostgreSQL)"
    )]
    Checkpoint {
        /// Where it should be.
        lsn: Lsn,
        /// The WAL directory.
        path: PathBuf,
        /// What is there.
        reason: String,
    },
    /// There is something where the store is to be made.
    #[error("{path} is not empty (hint: choose another directory, or remove what is in it)")]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
    /// A file of the source, or the directory of the store, cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Disk {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The store could not be created.
    #[error(transparent)]
    Create(#[from] page_store::CreateError),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] page_store::OpenError),
    /// The store did not take the pages.
    #[error(transparent)]
    Images(#[from] page_store::ImageWriteError),
    /// The store did not take the state.
    #[error(transparent)]
    Ingest(#[from] page_store::IngestError),
    /// The store could not write it.
    #[error(transparent)]
    Flush(#[from] page_store::FlushError),
}

/// Makes an I/O error of `path` an [`ImportError`].
pub(super) fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImportError {
    let path = path.to_owned();
    move |source| ImportError::Disk {
        action,
        path,
        source,
    }
}
