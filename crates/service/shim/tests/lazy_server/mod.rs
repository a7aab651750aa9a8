//! A stock PostgreSQL server on a lazily filled copy of a stopped cluster: relation files and SLRUs are
//! sparse stubs, everything else is copied, and the pages come from a [`PageServer`] that reads the
//! original's files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use shim_abi::builder::{MapBuilder, MapReader, MapStatistics};
use shim_abi::map::tablespace_directory;
use testkit::{OrdinaryUser, PgBinaries};

use crate::page_server::{PageServer, shim_library};

const SYSTEM: u64 = 815;
const PORT: &str = "5433";
const PAGE: u64 = 8192;

pub struct LazyServer {
    pub pages: PageServer,
    binaries: PgBinaries,
    user: OrdinaryUser,
    directory: PathBuf,
    running: bool,
}

pub struct LazyOptions {
    pub cache_limit_blocks: u64,
    pub read_timeout_ms: u64,
    pub settings: Vec<&'static str>,
}

type Forks = BTreeMap<(u32, u32, u32, u32), (u32, PathBuf)>;

impl LazyServer {
    /// Builds the copy below `directory` and starts it. `original` must stay as it is.
    pub fn start(
        binaries: PgBinaries,
        original: &Path,
        directory: &Path,
        options: &LazyOptions,
    ) -> LazyServer {
        let user = OrdinaryUser::current().unwrap();
        fs::create_dir_all(directory).unwrap();
        let pgdata = directory.join("pgdata");
        let mut forks = Forks::new();
        copy_lazily(original, original, &pgdata, binaries.major(), &mut forks);
        let socket = directory.join("pages.sock");
        let mut map = MapBuilder::new(
            SYSTEM,
            binaries.major(),
            0x100_0028,
            format!("unix:{}", socket.display()),
            options.cache_limit_blocks,
            options.read_timeout_ms,
        );
        map.data_directory(&pgdata);
        for ((space, db, rel, fork), (blocks, _)) in &forks {
            map.add(*space, *db, *rel, *fork, *blocks);
        }
        map.write(&directory.join("shim.map")).unwrap();
        // Where the build put it, the server's user may not look.
        fs::copy(shim_library(), directory.join("shim.so")).unwrap();
        give(&user, directory);
        let pages = PageServer::start(
            &socket,
            SYSTEM,
            Arc::new(move |get, block| {
                let key = (get.space, get.db, get.rel, u32::from(get.fork));
                let (blocks, path) = forks.get(&key)?;
                if block >= *blocks {
                    return None;
                }
                let per_file = if get.space == 0 { 32 } else { 131_072 };
                let path = segment_path(path, get.space == 0, block / per_file);
                let mut page = vec![0; PAGE as usize];
                let at = u64::from(block % per_file) * PAGE;
                File::open(path).ok()?.read_exact_at(&mut page, at).ok()?;
                Some(page)
            }),
        );
        let mut server = LazyServer {
            pages,
            binaries,
            user,
            directory: directory.to_owned(),
            running: false,
        };
        server.launch(options);
        server
    }

    fn launch(&mut self, options: &LazyOptions) {
        let mut settings = format!(
            "-p {PORT} -c unix_socket_directories={} -c restart_after_crash=off -c fsync=off",
            self.directory.display()
        );
        for setting in &options.settings {
            settings.push_str(" -c ");
            settings.push_str(setting);
        }
        let mut start = self.command("pg_ctl");
        start
            .args(["start", "-w", "-s", "-D"])
            .arg(self.directory.join("pgdata"))
            .args(["-o", &settings, "-l"])
            .arg(self.directory.join("server.log"))
            .env("LD_PRELOAD", self.directory.join("shim.so"))
            .env("STRANDLINE_SHIM_MAP", self.directory.join("shim.map"));
        let started = start.status().unwrap();
        assert!(started.success(), "{}", self.log());
        self.running = true;
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("server.log")).unwrap_or_default()
    }

    pub fn statistics(&self) -> MapStatistics {
        MapReader::open(&self.directory.join("shim.map"))
            .unwrap()
            .statistics()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.user.command(&self.binaries.program(program).unwrap());
        command.env("TZ", "UTC").env("LC_ALL", "C");
        command
    }

    pub fn client(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command
            .env("PGHOST", &self.directory)
            .env("PGPORT", PORT)
            .env("PGUSER", "postgres");
        command
    }

    /// What psql made of `sql`, well or badly.
    pub fn try_psql(&self, database: &str, sql: &str) -> Output {
        let mut psql = self.client("psql");
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            database,
            "-c",
            sql,
        ]);
        psql.output().unwrap()
    }

    pub fn psql(&self, database: &str, sql: &str) -> String {
        let output = self.try_psql(database, sql);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {error}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    pub fn stop(&mut self, mode: &str) {
        let mut stop = self.command("pg_ctl");
        stop.args(["stop", "-w", "-s", "-m", mode, "-D"])
            .arg(self.directory.join("pgdata"));
        assert!(stop.status().unwrap().success(), "{}", self.log());
        self.running = false;
    }
}

impl Drop for LazyServer {
    fn drop(&mut self) {
        if self.running {
            let mut stop = self.command("pg_ctl");
            stop.args(["stop", "-s", "-m", "immediate", "-D"])
                .arg(self.directory.join("pgdata"));
            let _ = stop.status();
        }
    }
}

fn give(user: &OrdinaryUser, path: &Path) {
    user.own(path).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_symlink() {
                give(user, &path);
            }
        }
    }
}

fn segment_path(first: &Path, is_slru: bool, segment: u32) -> PathBuf {
    if is_slru {
        return first.join(format!("{segment:04X}"));
    }
    let mut path = first.as_os_str().to_owned();
    if segment > 0 {
        path.push(format!(".{segment}"));
    }
    PathBuf::from(path)
}

/// Copies a cluster with stubs for what the shim governs, which is collected in `forks`.
fn copy_lazily(original: &Path, from: &Path, to: &Path, major: u32, forks: &mut Forks) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, PermissionsExt::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        let metadata = fs::metadata(&path).unwrap();
        if metadata.is_dir() {
            // A tablespace's link becomes a directory, which PostgreSQL accepts in its place.
            copy_lazily(original, &path, &target, major, forks);
            continue;
        }
        let relative = path.strip_prefix(original).unwrap().to_str().unwrap();
        match governed(relative, major) {
            Some((key, segment)) if metadata.len() > 0 => {
                File::create(&target)
                    .unwrap()
                    .set_len(metadata.len())
                    .unwrap();
                fs::set_permissions(&target, PermissionsExt::from_mode(0o600)).unwrap();
                let is_slru = key.0 == 0;
                let per_file = if is_slru { 32 } else { 131_072 };
                let end = segment * per_file + (metadata.len() / PAGE) as u32;
                let first = if is_slru {
                    path.parent().unwrap().to_owned()
                } else {
                    let name = path.to_str().unwrap();
                    PathBuf::from(
                        name.split_once('.')
                            .filter(|_| segment > 0)
                            .map_or(name, |(first, _)| first),
                    )
                };
                let known = forks.entry(key).or_insert((0, first));
                known.0 = known.0.max(end);
            }
            _ => {
                fs::copy(&path, &target).unwrap();
            }
        }
    }
}

/// The test's own reading of file names, so that it does not share the shim's mistakes.
fn governed(path: &str, major: u32) -> Option<((u32, u32, u32, u32), u32)> {
    let parts: Vec<&str> = path.split('/').collect();
    let slru = |number, file: &str| Some(((0, 0, number, 0), u32::from_str_radix(file, 16).ok()?));
    let (space, db, file) = match parts[..] {
        ["base", db, file] => (1663, db.parse().ok()?, file),
        ["global", file] => (1664, 0, file),
        ["pg_tblspc", space, version, db, file] if Some(version) == tablespace_directory(major) => {
            (space.parse().ok()?, db.parse().ok()?, file)
        }
        ["pg_xact", file] => return slru(1, file),
        ["pg_multixact", "offsets", file] => return slru(2, file),
        ["pg_multixact", "members", file] => return slru(3, file),
        ["pg_commit_ts", file] => return slru(4, file),
        _ => return None,
    };
    let (name, segment) = file.split_once('.').unwrap_or((file, "0"));
    let (rel, fork) = name.split_once('_').unwrap_or((name, "main"));
    let fork = ["main", "fsm", "vm", "init"]
        .iter()
        .position(|known| *known == fork)?;
    Some((
        (space, db, rel.parse().ok()?, fork as u32),
        segment.parse().ok()?,
    ))
}
