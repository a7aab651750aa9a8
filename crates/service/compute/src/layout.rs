//! Where everything of a cluster lies below one data directory.
//!
//! **Invariant.** `cluster.toml` exists exactly when the cluster is complete: it is the last file an
//! import puts in place. Whatever lies in `compute/` may be deleted at any time; nothing that must
//! survive is ever kept there.
//!
//! ```text
//! <data>/cluster.toml   what the cluster is
//!        config/        postgresql.conf, pg_hba.conf, pg_ident.conf, postgresql.auto.conf
//!        log-<i>/       WAL of log store i          storage/  layers of the storage node
//!        compute/       one incarnation's data directory, map file and tablespaces (a cache)
//!        run/           sockets                     logs/     what the processes print
//!        lib/           the page shim               strandline.lock
//! ```

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pg_types::{PgMajor, SegmentSize};
use serde::{Deserialize, Serialize};

/// Longest path of a Unix socket (`sun_path` without its NUL).
pub const MAX_SOCKET_PATH: usize = 107;

/// The longest socket name below the run directory.
const LONGEST_SOCKET: &str = "/log-0/.s.PGSQL.65535";

/// The data directory of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data: PathBuf,
}

/// A cluster's description, `cluster.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDescription {
    /// Version of this file.
    pub format: u32,
    /// System identifier, as PostgreSQL prints it.
    #[serde(with = "decimal")]
    pub system_identifier: u64,
    /// PostgreSQL major.
    pub major: PgMajor,
    /// Name of the bootstrap superuser.
    pub superuser: String,
    /// WAL segment size in bytes.
    pub segment_size: SegmentSize,
    /// Number of log stores, 1 or 3.
    pub log_stores: usize,
    /// When the cluster was created, seconds since 1970.
    pub created_unix: u64,
    /// Directory of the PostgreSQL binaries it was created with.
    pub pg_bin: PathBuf,
}

/// A TOML integer is signed, a system identifier may not fit: it is written as text.
mod decimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// The version of `cluster.toml` that this program reads and writes.
pub const CLUSTER_FORMAT: u32 = 1;

/// Why `cluster.toml` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterFileError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not what this program writes.
    #[error("{} is not a cluster description: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        message: String,
    },
    /// The file is of another version.
    #[error("{} has format {found}; this program knows format {CLUSTER_FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
}

impl ClusterDescription {
    /// How many stores must have a commit.
    #[must_use]
    pub const fn quorum(&self) -> usize {
        self.log_stores / 2 + 1
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`ClusterFileError`].
    pub fn read(path: &Path) -> Result<ClusterDescription, ClusterFileError> {
        let text = fs::read_to_string(path).map_err(|source| ClusterFileError::Io {
            path: path.to_owned(),
            source,
        })?;
        let malformed = |message: String| ClusterFileError::Malformed {
            path: path.to_owned(),
            message,
        };
        let cluster: ClusterDescription =
            toml::from_str(&text).map_err(|error| malformed(error.message().to_owned()))?;
        if cluster.format != CLUSTER_FORMAT {
            return Err(ClusterFileError::Format {
                path: path.to_owned(),
                found: cluster.format,
            });
        }
        Ok(cluster)
    }

    /// Writes the description durably, replacing what was there in one step.
    ///
    /// # Errors
    /// [`ClusterFileError`].
    pub fn write(&self, path: &Path) -> Result<(), ClusterFileError> {
        let text = toml::to_string(self).map_err(|error| ClusterFileError::Malformed {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
        replace_file(path, text.as_bytes()).map_err(|source| ClusterFileError::Io {
            path: path.to_owned(),
            source,
        })
    }
}

/// Replaces `path` by `bytes` durably: a reader sees the old file or the new one.
///
/// # Errors
/// The operating system's.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

impl Layout {
    /// The layout below `data`, an absolute path.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Layout {
        Layout { data: data.into() }
    }

    /// The data directory itself.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// `cluster.toml`.
    #[must_use]
    pub fn cluster_file(&self) -> PathBuf {
        self.data.join("cluster.toml")
    }

    /// The user's PostgreSQL configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.data.join("config")
    }

    /// Directory of log store `index`.
    #[must_use]
    pub fn log_store(&self, index: usize) -> PathBuf {
        self.data.join(format!("log-{index}"))
    }

    /// Directory of the storage node.
    #[must_use]
    pub fn storage(&self) -> PathBuf {
        self.data.join("storage")
    }

    /// Everything local to one incarnation of the compute node.
    #[must_use]
    pub fn compute(&self) -> PathBuf {
        self.data.join("compute")
    }

    /// What the processes print.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// The shim that PostgreSQL is started with.
    #[must_use]
    pub fn shim(&self) -> PathBuf {
        self.data.join("lib").join("libstrandline_shim.so")
    }

    /// Locked by the supervisor as long as it runs.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.data.join("strandline.lock")
    }

    /// Where an import prepares a cluster.
    #[must_use]
    pub fn preparing(&self) -> PathBuf {
        self.data.join(".preparing")
    }

    /// Directory of the sockets: `<data>/run`, or one below `/tmp` when that path is too long for a
    /// Unix socket.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        let run = self.data.join("run");
        if run.as_os_str().len() + LONGEST_SOCKET.len() <= MAX_SOCKET_PATH {
            return run;
        }
        let hash = fnv1a(self.data.as_os_str().as_bytes());
        // The owner, not the caller: root asks for the status of a cluster that another user runs.
        let owner = fs::metadata(&self.data).map_or(0, |about| about.uid());
        PathBuf::from(format!("/tmp/strandline-{owner}-{hash:016x}"))
    }

    /// The supervisor's control endpoint.
    #[must_use]
    pub fn supervisor_control(&self) -> rpc::Endpoint {
        rpc::Endpoint::Unix(self.run().join("up.ctl"))
    }
}

/// Name of log store `index`, by which the primary counts it.
#[must_use]
pub fn log_store_name(index: usize) -> String {
    format!("strandline_log_{index}")
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> ClusterDescription {
        ClusterDescription {
            format: CLUSTER_FORMAT,
            system_identifier: u64::MAX - 3,
            major: PgMajor::V15,
            superuser: "postgres".to_owned(),
            segment_size: SegmentSize::DEFAULT,
            log_stores: 3,
            created_unix: 1_800_000_000,
            pg_bin: PathBuf::from("/usr/lib/postgresql/15/bin"),
        }
    }

    #[test]
    fn a_description_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        description().write(&path).unwrap();
        assert_eq!(ClusterDescription::read(&path).unwrap(), description());
        assert_eq!(description().quorum(), 2);
    }

    #[test]
    fn another_format_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        ClusterDescription {
            format: 9,
            ..description()
        }
        .write(&path)
        .unwrap();
        let error = ClusterDescription::read(&path).unwrap_err().to_string();
        assert!(error.contains("format 9"), "{error}");
        fs::write(&path, "format = 1\nmajor = 99\n").unwrap();
        assert!(matches!(
            ClusterDescription::read(&path),
            Err(ClusterFileError::Malformed { .. })
        ));
    }

    #[test]
    fn long_data_paths_get_a_short_run_directory() {
        assert_eq!(Layout::new("/srv/db").run(), PathBuf::from("/srv/db/run"));
        let long = Layout::new(format!("/srv/{}", "x".repeat(90)));
        let other = Layout::new(format!("/srv/{}", "y".repeat(90)));
        assert!(long.run().as_os_str().len() + LONGEST_SOCKET.len() <= MAX_SOCKET_PATH);
        assert_ne!(long.run(), other.run());
    }
}
