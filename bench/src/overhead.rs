//! What Strandline costs a running application: the same server binary with and without it, on the same
//! disk, stock with `fsync = on`.

use anyhow::Result;
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::{PgBinaries, StockServer};

use crate::Effort;
use crate::pgbench::Side;
use crate::report::{Report, Series};

/// Settings of both servers; enough memory that the hot runs are hot.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("max_parallel_workers_per_gather", "0"),
];

/// Runs select-only, TPC-B at 1 and 8 clients, and cold sequential scans.
///
/// # Errors
/// When a server or pgbench fails.
pub fn run(binaries: &PgBinaries, effort: &Effort) -> Result<Report> {
    let scratch = tempfile::Builder::new()
        .prefix("strandline-bench-")
        .tempdir()?;
    let mut settings = SETTINGS.to_vec();
    settings.push(("fsync", "on"));
    let mut stock = StockServer::init(
        binaries.clone(),
        &scratch.path().join("stock"),
        &[],
        &settings,
    )?;
    stock.start()?;
    let mut cluster = Cluster::start(ClusterOptions {
        settings: SETTINGS
            .iter()
            .map(|(name, value)| format!("{name} = '{value}'"))
            .collect(),
        ..ClusterOptions::new(binaries.directory())
    })?;
    let sides = [
        Side::new(
            "stock",
            stock.socket_dir().to_path_buf(),
            stock.port(),
            binaries,
        ),
        Side::strandline(&cluster, binaries),
    ];
    let server = sides[0].psql("SHOW server_version")?.trim().to_owned();
    let mut report = Report::new(
        "overhead",
        "pgbench on stock PostgreSQL and on Strandline, interleaved; and a cold sequential scan",
        &server,
    );
    for side in &sides {
        side.initialize(effort.scale)?;
        side.psql("VACUUM ANALYZE")?;
        // Both start with every page in shared buffers.
        side.psql("SELECT count(*), sum(abalance) FROM pgbench_accounts")?;
    }
    for (load, clients, arguments) in [
        ("select-only", 2, &["-S"][..]),
        ("tpcb", 1, &[][..]),
        ("tpcb", 8, &[][..]),
    ] {
        let ratio = interleave(&mut report, &sides, load, clients, arguments, effort)?;
        let goal = if load == "select-only" { 0.95 } else { 1.0 };
        report.at_least(
            &format!("{load}/clients={clients}: strandline / stock"),
            ratio,
            "",
            goal,
        );
    }
    cold_scan(&mut report, &mut cluster, &sides[1], effort)?;
    cluster.down()?;
    stock.stop()?;
    Ok(report)
}

/// Alternates the sides, the other one first in every second round, and returns the ratio of medians.
fn interleave(
    report: &mut Report,
    sides: &[Side; 2],
    load: &str,
    clients: u32,
    arguments: &[&str],
    effort: &Effort,
) -> Result<f64> {
    let mut series = sides.each_ref().map(|side| {
        Series::new(
            &format!("{load}/clients={clients}/{}", side.name),
            "transactions/s",
        )
    });
    for round in 0..effort.rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            // Neither side pays for the other's dirty pages.
            for side in sides {
                side.psql("CHECKPOINT")?;
            }
            let tps = sides[at].tps(clients, effort.seconds, arguments)?;
            series[at].values.push(tps);
            eprintln!("  {} {tps:.0} transactions/s", series[at].name);
        }
    }
    let ratio = series[1].median() / series[0].median();
    report.series.extend(series);
    Ok(ratio)
}

/// Scans the accounts table right after a start with an empty cache.
fn cold_scan(
    report: &mut Report,
    cluster: &mut Cluster,
    side: &Side,
    effort: &Effort,
) -> Result<()> {
    let mut speed = Series::new("cold sequential scan/strandline", "MB/s");
    for _ in 0..effort.rounds {
        cluster.down()?;
        std::fs::remove_dir_all(cluster.data().join("compute"))?;
        cluster.up()?;
        let bytes: f64 = side
            .psql("SELECT pg_relation_size('pgbench_accounts')")?
            .trim()
            .parse()?;
        let begun = std::time::Instant::now();
        side.psql("SELECT count(*), sum(abalance) FROM pgbench_accounts")?;
        speed
            .values
            .push(bytes / 1e6 / begun.elapsed().as_secs_f64());
        eprintln!(
            "  cold scan {:.0} MB/s",
            speed.values.last().copied().unwrap_or_default()
        );
    }
    report.at_least("cold sequential scan", speed.median(), "MB/s", 300.0);
    report.series.push(speed);
    Ok(())
}
