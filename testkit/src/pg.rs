//! Stock PostgreSQL on this machine: finding it, and running servers of it.
//!
//! **Invariant.** A test that needs PostgreSQL and does not find it fails and says what is missing;
//! it never passes by skipping. Servers run as an ordinary user, listen only on a Unix socket in
//! their own directory, and are gone when their [`StockServer`] is dropped.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Port, hence name of the Unix socket, of every [`StockServer`]: each has a directory of its own.
const PORT: u16 = 5432;

/// The programs of one PostgreSQL major.
#[derive(Debug, Clone)]
pub struct PgBinaries {
    major: u32,
    bin: PathBuf,
}

impl PgBinaries {
    /// Finds PostgreSQL `major`: in the directory that the environment variable
    /// `STRANDLINE_PG<major>` names, else where Debian installs it.
    ///
    /// # Errors
    /// When there is no `postgres` in that directory; the message says what to set.
    pub fn find(major: u32) -> Result<PgBinaries> {
        let bin = Self::configured(major)
            .unwrap_or_else(|| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")));
        for program in ["postgres", "initdb", "pg_ctl"] {
            if !bin.join(program).is_file() {
                bail!(
                    "this test needs PostgreSQL {major}, but there is no {}; \
                     set STRANDLINE_PG{major} to the directory of its programs",
                    bin.join(program).display()
                );
            }
        }
        Ok(PgBinaries { major, bin })
    }

    /// The directory that `STRANDLINE_PG<major>` names, if it is set.
    #[must_use]
    pub fn configured(major: u32) -> Option<PathBuf> {
        std::env::var_os(format!("STRANDLINE_PG{major}")).map(PathBuf::from)
    }

    /// The programs in `bin`, whose major `postgres -V` tells.
    ///
    /// # Errors
    /// When there is no `postgres` there, or it does not tell.
    pub fn at(bin: &Path) -> Result<PgBinaries> {
        let postgres = bin.join("postgres");
        let said = run(Command::new(&postgres).arg("-V"))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        // "postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)"
        let major = said
            .split_whitespace()
            .find_map(|word| word.split('.').next()?.parse().ok())
            .with_context(|| format!("{} -V says {said:?}", postgres.display()))?;
        Ok(PgBinaries {
            major,
            bin: bin.to_owned(),
        })
    }

    /// The major these are of.
    #[must_use]
    pub const fn major(&self) -> u32 {
        self.major
    }

    /// The directory of the programs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.bin
    }

    /// A program of this major, or, where a server was packed without clients, one of 15: clients
    /// speak to newer servers.
    ///
    /// # Errors
    /// When neither has it.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let own = self.bin.join(name);
        if own.is_file() {
            return Ok(own);
        }
        let fallback = PgBinaries::find(15)?.bin.join(name);
        if !fallback.is_file() {
            bail!(
                "neither {} nor {} exists",
                own.display(),
                fallback.display()
            );
        }
        Ok(fallback)
    }
}

/// The user that servers run as: PostgreSQL refuses to run as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrdinaryUser {
    ids: Option<(u32, u32)>,
}

impl OrdinaryUser {
    /// The caller itself, or for root the user `postgres`, else `nobody`.
    ///
    /// # Errors
    /// When root runs the tests and neither user exists.
    pub fn current() -> Result<OrdinaryUser> {
        if fs::metadata("/proc/self")
            .context("reading /proc/self")?
            .uid()
            != 0
        {
            return Ok(OrdinaryUser { ids: None });
        }
        let users = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        let ids = ["postgres", "nobody"].iter().find_map(|name| {
            let mut fields = users
                .lines()
                .map(|line| line.split(':'))
                .find(|line| line.clone().next() == Some(name))?
                .skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        if ids.is_none() {
            bail!("root cannot run PostgreSQL, and there is no user postgres or nobody");
        }
        Ok(OrdinaryUser { ids })
    }

    /// A command that runs `program` as this user.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        // Programs complain when they cannot see the directory they are started in.
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Gives `path` to this user.
    ///
    /// # Errors
    /// When the owner cannot be changed.
    pub fn own(&self, path: &Path) -> Result<()> {
        if let Some((uid, gid)) = self.ids {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .with_context(|| format!("giving {} to user {uid}", path.display()))?;
        }
        Ok(())
    }
}

/// A server of stock PostgreSQL in a directory of its own.
#[derive(Debug)]
pub struct StockServer {
    binaries: PgBinaries,
    user: OrdinaryUser,
    dir: PathBuf,
    running: bool,
}

impl StockServer {
    /// Makes a cluster in `dir`, which is created if need be and then belongs to the ordinary user;
    /// `initdb` is given `initdb_args`, and `settings` go to `postgresql.conf`. The superuser is
    /// `postgres`, without password.
    ///
    /// # Errors
    /// When `initdb` fails; the error has its output.
    pub fn init(
        binaries: PgBinaries,
        dir: &Path,
        initdb_args: &[&str],
        settings: &[(&str, &str)],
    ) -> Result<StockServer> {
        let user = OrdinaryUser::current()?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        user.own(dir)?;
        let server = StockServer {
            binaries,
            user,
            dir: dir.to_owned(),
            running: false,
        };
        let mut initdb = server.command("initdb")?;
        initdb.args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
            "-D",
        ]);
        run(initdb.arg(server.data_dir()).args(initdb_args))?;
        let conf = server.data_dir().join("postgresql.conf");
        let mut conf = fs::OpenOptions::new()
            .append(true)
            .open(&conf)
            .with_context(|| format!("opening {}", conf.display()))?;
        let socket_dir = server.dir.display().to_string();
        let own = [
            ("listen_addresses", ""),
            ("unix_socket_directories", socket_dir.as_str()),
            ("fsync", "off"),
        ];
        for (name, value) in own.iter().chain(settings) {
            writeln!(conf, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(server)
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("pgdata")
    }

    /// The directory of the Unix socket: the `host` to connect to.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.dir
    }

    /// The port to connect to.
    #[must_use]
    pub const fn port(&self) -> u16 {
        PORT
    }

    /// Starts the server and waits until it takes connections.
    ///
    /// # Errors
    /// When it does not start; the error has the end of its log.
    pub fn start(&mut self) -> Result<()> {
        let log = self.dir.join("server.log");
        let mut start = self.command("pg_ctl")?;
        start
            .args(["start", "-w", "-s", "-D"])
            .arg(self.data_dir())
            .arg("-l")
            .arg(&log);
        start.args(["-o", &format!("-p {PORT}")]);
        if let Err(error) = run(&mut start) {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines
                .get(lines.len().saturating_sub(20)..)
                .unwrap_or_default();
            return Err(error.context(format!("server log:\n{}", tail.join("\n"))));
        }
        self.running = true;
        Ok(())
    }

    /// Stops the server with a shutdown checkpoint.
    ///
    /// # Errors
    /// When `pg_ctl` fails.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_mode("fast")
    }

    /// Stops the server as a crash would, without a checkpoint.
    ///
    /// # Errors
    /// When `pg_ctl` fails.
    pub fn crash(&mut self) -> Result<()> {
        self.stop_mode("immediate")
    }

    /// Runs `sql` in `database` and returns what it prints: unaligned, tuples only. The first
    /// failing statement ends it.
    ///
    /// # Errors
    /// When a statement fails; the error has the message.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = self.client("psql")?;
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
        let output = run(&mut psql).with_context(|| format!("running {sql}"))?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// A client program, set to connect to this server as `postgres`.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn client(&self, program: &str) -> Result<Command> {
        let mut command = self.command(program)?;
        command
            .env("PGHOST", &self.dir)
            .env("PGPORT", PORT.to_string())
            .env("PGUSER", "postgres");
        Ok(command)
    }

    /// Any program of this major, run as the server's user.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = self.user.command(&self.binaries.program(program)?);
        command.env("TZ", "UTC").env("LC_ALL", "C");
        Ok(command)
    }

    fn stop_mode(&mut self, mode: &str) -> Result<()> {
        let mut stop = self.command("pg_ctl")?;
        run(stop
            .args(["stop", "-w", "-s", "-m", mode, "-D"])
            .arg(self.data_dir()))?;
        self.running = false;
        Ok(())
    }
}

impl Drop for StockServer {
    fn drop(&mut self) {
        // A test that failed left it running; nothing more can be done if this fails too.
        if self.running {
            let _ = self.crash();
        }
    }
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_and_leaves_nothing_running() {
        let dir = tempfile::tempdir().unwrap();
        let binaries = PgBinaries::find(15).unwrap();
        let mut server =
            StockServer::init(binaries, dir.path(), &[], &[("shared_buffers", "1MB")]).unwrap();
        server.start().unwrap();
        assert_eq!(
            server.psql("postgres", "SHOW shared_buffers").unwrap(),
            "1MB"
        );
        let failure = server.psql("postgres", "SELECT 1/0").unwrap_err();
        assert!(
            format!("{failure:#}").contains("division by zero"),
            "{failure:#}"
        );
        let pid_file = server.data_dir().join("postmaster.pid");
        assert!(pid_file.exists());
        drop(server);
        assert!(!pid_file.exists());
    }

    #[test]
    fn a_missing_major_is_named() {
        let error = PgBinaries::find(9).unwrap_err().to_string();
        assert!(
            error.contains("PostgreSQL 9") && error.contains("STRANDLINE_PG9"),
            "{error}"
        );
    }
}
