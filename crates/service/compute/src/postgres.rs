//! The stock `postgres` process: checking the binary, launching it, ending it.
//!
//! **Invariant.** The server runs with the page shim or not at all, as the manager's own (ordinary)
//! user, and never outlives the manager: the kernel sends it SIGQUIT when the manager dies.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pg_types::PgMajor;

use crate::datadir::BuiltDirectory;
use crate::leftover::send_signal;
use crate::settings::UserSettings;

/// Why PostgreSQL cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// There is no such program.
    #[error(
        "{} does not exist or cannot be run: {source} (hint: install PostgreSQL {wanted} or name its directory with --pg-bin)",
        path.display()
    )]
    Missing {
        /// The binary.
        path: PathBuf,
        /// Which major is needed, if one is.
        wanted: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It printed something else than a version.
    #[error("{} -V printed {output:?}, which names no PostgreSQL version", path.display())]
    Version {
        /// The binary.
        path: PathBuf,
        /// What it printed.
        output: String,
    },
    /// A version that Strandline does not know.
    #[error(
        "{} is PostgreSQL {version}, which is not supported (hint: use one of 14 to 18, named with --pg-bin)",
        path.display()
    )]
    Unsupported {
        /// The binary.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// Another major than the cluster's.
    #[error(
        "the cluster is of PostgreSQL {cluster} but {} is PostgreSQL {version} (hint: name the directory of a PostgreSQL {cluster} with --pg-bin)",
        path.display()
    )]
    OtherMajor {
        /// The cluster's major.
        cluster: PgMajor,
        /// The binary.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// It could not be started.
    #[error("cannot start {}: {source}", path.display())]
    Launch {
        /// The binary, or the file that its output goes to.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `postgres -C` failed: the configuration is broken.
    #[error("the configuration cannot be read: {message}")]
    Configuration {
        /// What PostgreSQL said.
        message: String,
    },
}

/// A `postgres` binary whose version is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresBinary {
    /// The program.
    pub path: PathBuf,
    /// Its version, as it prints it.
    pub version: String,
    /// Its major.
    pub major: PgMajor,
}

impl PostgresBinary {
    /// The `postgres` in `pg_bin`.
    ///
    /// # Errors
    /// [`PostgresError`] when it is missing or of an unsupported major.
    pub fn find(pg_bin: &Path, wanted: Option<PgMajor>) -> Result<PostgresBinary, PostgresError> {
        let path = pg_bin.join("postgres");
        let wanted = wanted.map_or_else(|| "14 to 18".to_owned(), |major| major.to_string());
        let output = Command::new(&path)
            .arg("-V")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| PostgresError::Missing {
                path: path.clone(),
                wanted,
                source,
            })?;
        let output = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let Some((version, number)) = parse_version(&output) else {
            return Err(PostgresError::Version { path, output });
        };
        let Ok(major) = PgMajor::try_from(number) else {
            return Err(PostgresError::Unsupported { path, version });
        };
        Ok(PostgresBinary {
            path,
            version,
            major,
        })
    }

    /// Refuses a binary of another major than the cluster's.
    ///
    /// # Errors
    /// [`PostgresError::OtherMajor`].
    pub fn require(self, cluster: PgMajor) -> Result<PostgresBinary, PostgresError> {
        if self.major == cluster {
            return Ok(self);
        }
        Err(PostgresError::OtherMajor {
            cluster,
            path: self.path,
            version: self.version,
        })
    }

    /// What the configuration in `config` says about the settings that are merged with ours.
    ///
    /// # Errors
    /// [`PostgresError::Configuration`] with PostgreSQL's own message.
    pub fn user_settings(
        &self,
        config: &Path,
        pgdata: &Path,
    ) -> Result<UserSettings, PostgresError> {
        const NAMES: [&str; 4] = [
            "wal_level",
            "max_wal_senders",
            "max_replication_slots",
            "wal_consistency_checking",
        ];
        let mut names: Vec<&str> = NAMES.to_vec();
        if self.major >= PgMajor::V18 {
            names.push("io_method");
        }
        // Asking the server costs a process for each name; most configurations mention none of them.
        if !mentions_any(
            &[
                config.join("postgresql.conf"),
                pgdata.join("postgresql.auto.conf"),
            ],
            &names,
        ) {
            return Ok(UserSettings::default());
        }
        let mut values = Vec::with_capacity(names.len());
        for child in names
            .iter()
            .map(|name| self.ask(config, pgdata, name))
            .collect::<Vec<_>>()
        {
            let output = child.and_then(Child::wait_with_output).map_err(|source| {
                PostgresError::Launch {
                    path: self.path.clone(),
                    source,
                }
            })?;
            if !output.status.success() {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(PostgresError::Configuration { message });
            }
            values.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let value = |name: &str| {
            names
                .iter()
                .position(|known| *known == name)
                .and_then(|at| values.get(at))
                .cloned()
        };
        let number = |name: &str| value(name).and_then(|text| text.parse().ok());
        Ok(UserSettings {
            wal_level: value("wal_level"),
            max_wal_senders: number("max_wal_senders"),
            max_replication_slots: number("max_replication_slots"),
            wal_consistency_checking: value("wal_consistency_checking"),
            io_method: value("io_method"),
        })
    }

    fn ask(&self, config: &Path, pgdata: &Path, name: &str) -> io::Result<Child> {
        let mut command = Command::new(&self.path);
        command.arg("-C").arg(name).arg("-D").arg(pgdata);
        command
            .arg("-c")
            .arg(setting("config_file", &config.join("postgresql.conf")));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// Starts the server. Must be called on a thread that lives as long as the manager: the kernel
    /// ties the death signal to the thread.
    ///
    /// # Errors
    /// [`PostgresError::Launch`].
    pub fn launch(&self, launch: &Launch<'_>) -> Result<Postgres, PostgresError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| PostgresError::Launch { path, source }
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(launch.log)
            .map_err(fail(launch.log))?;
        let errors = log.try_clone().map_err(fail(launch.log))?;
        let mut command = Command::new(&self.path);
        command.arg("-D").arg(&launch.built.pgdata);
        command.arg("-c").arg(setting(
            "config_file",
            &launch.config.join("postgresql.conf"),
        ));
        for (name, value) in launch.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        for name in [
            "PGDATA",
            "PGPORT",
            "PGHOST",
            "PGUSER",
            "PGDATABASE",
            "PGOPTIONS",
        ] {
            command.env_remove(name);
        }
        command.env("LD_PRELOAD", preload(launch.shim));
        command.env(shim_abi::map::ENV_MAP, &launch.built.map);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        command.process_group(0);
        die_with_parent(&mut command, libc::SIGQUIT);
        let child = command.spawn().map_err(fail(&self.path))?;
        Ok(Postgres { child })
    }
}

/// What a server is started with.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The data directory and the shim's map.
    pub built: &'a BuiltDirectory,
    /// Directory of the configuration files.
    pub config: &'a Path,
    /// Settings for the command line.
    pub settings: &'a [(String, String)],
    /// The page shim.
    pub shim: &'a Path,
    /// Where its output goes.
    pub log: &'a Path,
}

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
}

impl Postgres {
    /// Process id of the postmaster.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Asks for a fast shutdown and waits up to `patience`; then for an immediate one; then kills.
    /// `hurry` is asked now and then whether to go on to the next step at once.
    pub fn stop(&mut self, patience: Duration, hurry: impl Fn() -> bool) -> Option<ExitStatus> {
        for (signal, patience) in [
            (libc::SIGINT, patience),
            (libc::SIGQUIT, Duration::from_secs(10)),
            (libc::SIGKILL, Duration::from_secs(30)),
        ] {
            send_signal(self.pid(), signal);
            let begun = Instant::now();
            while begun.elapsed() < patience && !(signal == libc::SIGINT && hurry()) {
                if let Ok(Some(status)) = self.child.try_wait() {
                    return Some(status);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        None
    }
}

/// Arranges that the kernel sends `signal` to the child when this thread dies.
#[allow(unsafe_code, reason = "prctl must be called between fork and exec")]
pub fn die_with_parent(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    // SAFETY: the closure makes two system calls that are async-signal-safe, allocates nothing and
    // touches no lock.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call.
            if libc::getppid().unsigned_abs() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

fn setting(name: &str, path: &Path) -> OsString {
    let mut text = OsString::from(name);
    text.push("=");
    text.push(path);
    text
}

/// The shim, before whatever the environment preloads already.
fn preload(shim: &Path) -> OsString {
    let mut list = shim.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` → ("15.18", 15); betas read `18beta1`.
fn parse_version(output: &str) -> Option<(String, u32)> {
    let version = output
        .strip_prefix("postgres (PostgreSQL) ")?
        .split_whitespace()
        .next()?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    Some((version.to_owned(), digits.parse().ok()?))
}

/// Whether a line of the files that is no comment has one of the names, or includes another file.
fn mentions_any(files: &[PathBuf], names: &[&str]) -> bool {
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .any(|text| {
            text.lines()
                .map(str::trim_start)
                .filter(|line| !line.starts_with('#'))
                .any(|line| {
                    let line = line.to_ascii_lowercase();
                    line.starts_with("include") || names.iter().any(|name| line.starts_with(name))
                })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let read = |text| parse_version(text).map(|(_, major)| major);
        assert_eq!(
            read("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
            Some(15)
        );
        assert_eq!(read("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(read("postgres (PostgreSQL) devel"), None);
        assert_eq!(read("bash: no"), None);
    }

    #[test]
    fn comments_are_no_settings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("postgresql.conf");
        std::fs::write(&file, "#wal_level = logical\n # include 'x'\nport = 5432\n").unwrap();
        assert!(!mentions_any(std::slice::from_ref(&file), &["wal_level"]));
        std::fs::write(&file, "  Wal_Level = logical\n").unwrap();
        assert!(mentions_any(std::slice::from_ref(&file), &["wal_level"]));
        std::fs::write(&file, "include_dir 'conf.d'\n").unwrap();
        assert!(mentions_any(std::slice::from_ref(&file), &["wal_level"]));
    }

    #[test]
    fn a_missing_binary_names_the_remedy() {
        let error =
            PostgresBinary::find(Path::new("/nonexistent"), Some(PgMajor::V17)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/postgres") && text.contains("--pg-bin"),
            "{text}"
        );
    }
}
