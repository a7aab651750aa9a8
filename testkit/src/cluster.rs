//! A running `strandline up`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, Role};

/// How to start a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Number of log stores, 1 or 3.
    pub log_stores: u32,
    /// Directory with the `postgres` to run.
    pub pg_bin: PathBuf,
    /// `--cache-size`, if limited.
    pub cache_size: Option<String>,
    /// Lines for `postgresql.conf`, written after the cluster has been created.
    pub settings: Vec<String>,
    /// Further arguments of `up`.
    pub arguments: Vec<String>,
}

impl ClusterOptions {
    /// One log store and the server in `pg_bin`.
    #[must_use]
    pub fn new(pg_bin: &Path) -> ClusterOptions {
        ClusterOptions {
            log_stores: 1,
            pg_bin: pg_bin.to_path_buf(),
            cache_size: None,
            settings: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

/// A cluster in a directory of its own; dropping it kills every process and removes the directory.
#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    directory: tempfile::TempDir,
    port: u16,
    supervisor: Option<Child>,
}

/// The `strandline` binary that cargo built beside this test.
///
/// # Errors
/// Says how to build it when it is not there.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STRANDLINE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let this = std::env::current_exe()?;
    for directory in this.ancestors().skip(1).take(3) {
        let candidate = directory.join("strandline");
        if candidate.is_file() && directory.join("libstrandline_shim.so").is_file() {
            return Ok(candidate);
        }
    }
    bail!(
        "no strandline binary with its page shim beside {}; run `cargo build --workspace` with the same profile first",
        this.display()
    )
}

impl Cluster {
    /// Picks a directory and a port for a cluster; nothing is run yet.
    ///
    /// # Errors
    /// When no directory can be made.
    pub fn prepare(options: ClusterOptions) -> Result<Cluster> {
        // Under the system's temporary directory, because the server runs as another user when this
        // runs as root, and a home directory would be closed to it.
        let directory = tempfile::Builder::new().prefix("strandline-").tempdir()?;
        open_to_everyone(directory.path())?;
        let port = free_port()?;
        Ok(Cluster {
            options,
            directory,
            port,
            supervisor: None,
        })
    }

    /// Creates a cluster and waits until it answers queries.
    ///
    /// # Errors
    /// When `up` exits or is not ready within two minutes; the error holds the end of its output.
    pub fn start(options: ClusterOptions) -> Result<Cluster> {
        let mut cluster = Cluster::prepare(options)?;
        cluster.up()?;
        if !cluster.options.settings.is_empty() {
            cluster.down()?;
            let mut conf = fs::OpenOptions::new()
                .append(true)
                .open(cluster.data().join("config/postgresql.conf"))?;
            for line in &cluster.options.settings {
                use std::io::Write;
                writeln!(conf, "{line}")?;
            }
            cluster.up()?;
        }
        Ok(cluster)
    }

    /// The cluster's directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The directory that holds the cluster's, for whatever else a test needs beside it; removed
    /// with the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Directory of the sockets.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.data().join("run")
    }

    /// How it is started next.
    pub const fn options_mut(&mut self) -> &mut ClusterOptions {
        &mut self.options
    }

    /// TCP port of PostgreSQL.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Directory of the server binaries in use.
    #[must_use]
    pub fn pg_bin(&self) -> &Path {
        &self.options.pg_bin
    }

    /// Id of the `up` process, while it runs.
    #[must_use]
    pub fn supervisor(&self) -> Option<u32> {
        self.supervisor.as_ref().map(Child::id)
    }

    /// Ids of the processes that have `role` now.
    #[must_use]
    pub fn pids(&self, role: Role) -> Vec<u32> {
        let Some(root) = self.supervisor() else {
            return Vec::new();
        };
        process::family(root)
            .into_iter()
            .filter(|(_, found)| *found == role)
            .map(|(process, _)| process.pid)
            .collect()
    }

    /// A command line of `strandline up` for this cluster.
    ///
    /// # Errors
    /// When the binary is not built.
    pub fn up_command(&self) -> Result<Command> {
        let mut command = Command::new(binary()?);
        command
            .arg("up")
            .arg("--data")
            .arg(self.data())
            .arg("--pg-bin")
            .arg(&self.options.pg_bin)
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", self.port))
            .arg("--log-stores")
            .arg(self.options.log_stores.to_string());
        if let Some(size) = &self.options.cache_size {
            command.arg("--cache-size").arg(size);
        }
        command.args(&self.options.arguments);
        Ok(command)
    }

    /// Starts `up` and waits for its connection string.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn up(&mut self) -> Result<()> {
        let log = self.directory.path().join("up.log");
        let stderr = File::options().create(true).append(true).open(&log)?;
        let mut child = self
            .up_command()?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        self.supervisor = Some(child);
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match receive.recv_timeout(Duration::from_secs(120)) {
                Ok(line) if line.starts_with("postgresql://") => return Ok(()),
                Ok(_) => {}
                Err(_) => {
                    self.kill_everything();
                    bail!(
                        "`strandline up` did not get ready; its output ends with:\n{}",
                        tail(&log)
                    );
                }
            }
        }
    }

    /// Stops `up` as Ctrl-C does and waits for it.
    ///
    /// # Errors
    /// When it does not end within a minute or ends with an error.
    pub fn down(&mut self) -> Result<()> {
        let Some(mut child) = self.supervisor.take() else {
            return Ok(());
        };
        process::signal(child.id(), libc::SIGINT);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!(
                    "`strandline up` ended with {status}:\n{}",
                    tail(&self.directory.path().join("up.log"))
                );
            }
            if Instant::now() > deadline {
                self.supervisor = Some(child);
                self.kill_everything();
                bail!("`strandline up` did not stop within a minute");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills every process of the cluster with SIGKILL, `up` first so that it restarts nothing.
    pub fn kill_everything(&mut self) {
        let Some(mut child) = self.supervisor.take() else {
            return;
        };
        let family = process::family(child.id());
        process::signal(child.id(), libc::SIGKILL);
        for (process, _) in &family {
            process::signal(process.pid, libc::SIGKILL);
        }
        let _ = child.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        while family.iter().any(|(one, _)| process::is_alive(one.pid)) && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `strandline status --json`.
    ///
    /// # Errors
    /// When the command fails or prints something else.
    pub fn status(&self) -> Result<serde_json::Value> {
        let output = Command::new(binary()?)
            .args(["status", "--json", "--data"])
            .arg(self.data())
            .output()?;
        if !output.status.success() {
            bail!(
                "strandline status: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        serde_json::from_slice(&output.stdout).context("strandline status --json")
    }

    /// Everything `up` has written to stderr.
    ///
    /// # Errors
    /// When it has not been started yet.
    pub fn up_log(&self) -> Result<String> {
        fs::read_to_string(self.directory.path().join("up.log")).context("up.log")
    }

    /// Everything the part `name` (`log-0`, `storage`, `compute`, `postgres`) has written to its log.
    ///
    /// # Errors
    /// When it has no log.
    pub fn log(&self, name: &str) -> Result<String> {
        let path = self.data().join("logs").join(format!("{name}.log"));
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What the parts wrote to their logs, for an error message.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = format!(
            "== up.log\n{}\n",
            tail(&self.directory.path().join("up.log"))
        );
        let Ok(entries) = fs::read_dir(self.data().join("logs")) else {
            return text;
        };
        for entry in entries.flatten() {
            text.push_str(&format!(
                "== {}\n{}\n",
                entry.file_name().to_string_lossy(),
                tail(&entry.path())
            ));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.kill_everything();
    }
}

fn open_to_everyone(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A TCP port that was free a moment ago.
///
/// # Errors
/// When no port can be bound at all.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
