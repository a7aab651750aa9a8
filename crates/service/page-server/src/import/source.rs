//! The cluster to be imported, once it is known to be stopped, whole and of a supported kind.

use std::fs;
use std::path::{Path, PathBuf};

use pg_page::{ClusterState, ControlFile};

use super::ImportError;
use super::error::disk;

/// A cleanly stopped cluster.
#[derive(Debug)]
pub(super) struct SourceCluster {
    pub(super) pgdata: PathBuf,
    pub(super) control: ControlFile,
}

impl SourceCluster {
    /// # Errors
    /// [`ImportError`] unless `pgdata` is a stopped, clean, supported cluster.
    pub(super) fn open(pgdata: &Path) -> Result<SourceCluster, ImportError> {
        let path = pgdata.join(pg_page::control::CONTROL_FILE_PATH);
        let missing = |missing| ImportError::NoCluster {
            path: pgdata.to_owned(),
            missing,
        };
        if !pgdata.join("PG_VERSION").is_file() {
            return Err(missing("PG_VERSION"));
        }
        if !path.is_file() {
            return Err(missing("global/pg_control"));
        }
        if let Some(pid) = running_postmaster(pgdata)? {
            return Err(ImportError::Running {
                path: pgdata.to_owned(),
                pid,
            });
        }
        if pgdata.join("backup_label").exists() {
            return Err(ImportError::Backup {
                path: pgdata.to_owned(),
            });
        }
        let bytes = fs::read(&path).map_err(disk("read", &path))?;
        let control = ControlFile::decode(&bytes)
            .map_err(|source| ImportError::ControlFile { path, source })?;
        match control.state() {
            ClusterState::ShutDown => {}
            ClusterState::ShutDownInRecovery => {
                return Err(ImportError::Standby {
                    path: pgdata.to_owned(),
                });
            }
            state => {
                let state = state.to_string();
                return Err(ImportError::Unclean {
                    path: pgdata.to_owned(),
                    state,
                });
            }
        }
        Ok(SourceCluster {
            pgdata: pgdata.to_owned(),
            control,
        })
    }
}

/// The process of `postmaster.pid`, if it is alive. A file that a crash left behind does not count:
/// the control file tells whether the cluster is clean.
fn running_postmaster(pgdata: &Path) -> Result<Option<u32>, ImportError> {
    let path = pgdata.join("postmaster.pid");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("read", &path)(error)),
    };
    let pid = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse::<u32>().ok());
    // Linux lists every process there, also those of other users.
    Ok(pid.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()))
}
