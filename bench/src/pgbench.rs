//! Driving pgbench and psql against either side.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::PgBinaries;
use testkit::cluster::Cluster;

/// A server under test.
#[derive(Debug, Clone)]
pub struct Side {
    /// `stock` or `strandline`; part of the series' names.
    pub name: &'static str,
    /// Directory of its Unix socket.
    pub socket: PathBuf,
    /// Its port.
    pub port: u16,
    binaries: PgBinaries,
}

impl Side {
    /// A server that listens in `socket`.
    #[must_use]
    pub fn new(name: &'static str, socket: PathBuf, port: u16, binaries: &PgBinaries) -> Side {
        Side {
            name,
            socket,
            port,
            binaries: binaries.clone(),
        }
    }

    /// The compute node of a cluster.
    #[must_use]
    pub fn strandline(cluster: &Cluster, binaries: &PgBinaries) -> Side {
        Side::new(
            "strandline",
            cluster.data().join("run"),
            cluster.port(),
            binaries,
        )
    }

    fn client(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(self.binaries.program(program)?);
        command
            .env("PGHOST", &self.socket)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres");
        Ok(command)
    }

    /// Runs `sql` and returns what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn psql(&self, sql: &str) -> Result<String> {
        run(self
            .client("psql")?
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]))
    }

    /// Creates pgbench's tables.
    ///
    /// # Errors
    /// When pgbench fails.
    pub fn initialize(&self, scale: u32) -> Result<()> {
        run(self
            .client("pgbench")?
            .args(["-i", "-q", "-s", &scale.to_string()]))?;
        self.psql("CHECKPOINT")?;
        Ok(())
    }

    /// Transactions per second of one pgbench run, connections excluded.
    ///
    /// # Errors
    /// When pgbench fails.
    pub fn tps(&self, clients: u32, seconds: u32, more: &[&str]) -> Result<f64> {
        let threads = clients.min(2).to_string();
        let output = run(self
            .client("pgbench")?
            .args([
                "-n",
                "-M",
                "prepared",
                "-c",
                &clients.to_string(),
                "-j",
                &threads,
            ])
            .args(["-T", &seconds.to_string()])
            .args(more))?;
        output
            .lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
            .with_context(|| format!("pgbench printed no tps:\n{output}"))
    }
}

impl Side {
    /// Runs `transactions` TPC-B transactions with each of `clients`, with a fixed seed.
    ///
    /// # Errors
    /// When pgbench fails.
    pub fn run_transactions(&self, clients: u32, transactions: u32) -> Result<()> {
        run(self
            .client("pgbench")?
            .args([
                "-n",
                "-M",
                "prepared",
                "-c",
                &clients.to_string(),
                "-j",
                "2",
            ])
            .args(["-t", &transactions.to_string(), "--random-seed=7"]))?;
        Ok(())
    }
}

/// Runs a command and returns its output.
///
/// # Errors
/// When it fails; with what it wrote to stderr.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
