//! How long a compute node takes from `compute start` to the first query, on a large database and right
//! after much WAL that nothing has replayed.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use testkit::PgBinaries;
use testkit::cluster::{self, Cluster, ClusterOptions};

use crate::Effort;
use crate::pgbench::{self, Side};
use crate::report::{Report, Series};

/// Bytes of WAL for the second series.
const UNREPLAYED: f64 = 2e9;

/// Runs the bench on a database of `effort.start_scale` (340 is 5 GB).
///
/// # Errors
/// When the cluster or pgbench fails.
pub fn run(binaries: &PgBinaries, effort: &Effort) -> Result<Report> {
    let mut cluster = Cluster::start(ClusterOptions {
        settings: vec![
            "max_wal_size = '64GB'".to_owned(),
            "checkpoint_timeout = '1d'".to_owned(),
        ],
        ..ClusterOptions::new(binaries.directory())
    })?;
    let side = Side::strandline(&cluster, binaries);
    let server = side.psql("SHOW server_version")?.trim().to_owned();
    let mut report = Report::new(
        "start",
        "from `strandline compute start` to the answer of the first query",
        &server,
    );
    side.initialize(effort.start_scale)?;
    let size: f64 = side
        .psql("SELECT sum(pg_database_size(oid)) FROM pg_database")?
        .trim()
        .parse()?;
    report.finding("database size", size / 1e9, "GB");

    let mut clean = Series::new("start/strandline/after a clean stop", "ms");
    let mut loaded = Series::new("start/strandline/after 2 GB of unreplayed WAL", "ms");
    for _ in 0..effort.rounds {
        compute(&cluster, &["stop"])?;
        clean.values.push(timed_start(&cluster, &side)?);
    }
    for _ in 0..effort.rounds {
        write_wal(&side)?;
        compute(&cluster, &["kill", "--stay-down"])?;
        loaded.values.push(timed_start(&cluster, &side)?);
    }
    report.at_most("start on this database", clean.median(), "ms", 500.0);
    report.at_most(
        "start after 2 GB of unreplayed WAL / after a clean stop",
        loaded.median() / clean.median(),
        "",
        1.2,
    );
    report.series.extend([clean, loaded]);
    cluster.down()?;
    Ok(report)
}

fn timed_start(cluster: &Cluster, side: &Side) -> Result<f64> {
    let begun = Instant::now();
    compute(cluster, &["start"])?;
    side.psql("SELECT 1")?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    eprintln!("  started in {ms:.0} ms");
    Ok(ms)
}

fn compute(cluster: &Cluster, what: &[&str]) -> Result<()> {
    pgbench::run(
        Command::new(cluster::binary()?)
            .arg("compute")
            .args(what)
            .arg("--data")
            .arg(cluster.data()),
    )?;
    Ok(())
}

fn write_wal(side: &Side) -> Result<()> {
    let position = "SELECT pg_current_wal_lsn() - '0/0'";
    let begin: f64 = side.psql(position)?.trim().parse()?;
    for _ in 0..200 {
        side.psql("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % 10 = 0")?;
        let now: f64 = side.psql(position)?.trim().parse()?;
        if now - begin >= UNREPLAYED {
            return Ok(());
        }
    }
    ensure!(
        false,
        "200 updates wrote less than {UNREPLAYED} bytes of WAL"
    );
    Ok(())
}
