//! The tiny-memory run: a megabyte of shared buffers and a local cache smaller than the data, so that
//! every page goes back and forth between PostgreSQL, the local cache and the storage node.
//!
//! **Claim.** pgbench, sysbench and a script of everything an application may do (`mixed.sql`) leave the
//! same databases as on stock PostgreSQL, before and after a restart that begins with an empty cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::{OrdinaryUser, PgBinaries, StockServer};

use crate::dump::{self, Address};

const DATABASES: [&str; 6] = ["mixed", "by_log", "by_copy", "from_copy", "bench", "sys"];

/// Both sides run with these.
const SETTINGS: [(&str, &str); 5] = [
    ("shared_buffers", "1MB"),
    ("max_connections", "20"),
    ("max_prepared_transactions", "10"),
    ("autovacuum", "off"),
    ("track_commit_timestamp", "on"),
];

/// Runs the loads on both servers and compares what they leave.
///
/// # Errors
/// When a load fails or the databases differ.
pub fn run(binaries: &PgBinaries) -> Result<()> {
    let options = ClusterOptions {
        cache_size: Some("8MB".to_owned()),
        settings: SETTINGS
            .iter()
            .map(|(name, value)| format!("{name} = '{value}'"))
            .collect(),
        ..ClusterOptions::new(binaries.directory())
    };
    let mut cluster = Cluster::start(options)?;
    match compare(&mut cluster, binaries) {
        Ok(()) => cluster.down(),
        Err(error) => Err(error.context(cluster.logs())),
    }
}

fn compare(cluster: &mut Cluster, binaries: &PgBinaries) -> Result<()> {
    let scratch = tempfile::Builder::new()
        .prefix("strandline-tiny-")
        .tempdir()?;
    let user = OrdinaryUser::current()?;
    user.own(scratch.path())?;
    let mut stock = StockServer::init(
        binaries.clone(),
        &scratch.path().join("stock"),
        &[],
        &SETTINGS,
    )?;
    stock.start()?;
    let theirs = Address {
        host: stock.socket_dir().display().to_string(),
        port: stock.port(),
    };
    let ours = Address::local(cluster.port());
    for (address, name) in [(&ours, "ours"), (&theirs, "theirs")] {
        let tablespace = scratch.path().join(name);
        fs::create_dir(&tablespace)?;
        user.own(&tablespace)?;
        load(address, binaries, &tablespace).with_context(|| format!("load on {name}"))?;
    }
    for step in ["prepare", "run"] {
        sysbench_on_both(cluster, &ours, &theirs, binaries, scratch.path(), step)?;
    }
    equal(&ours, &theirs, binaries).context("right after the load")?;

    // A new incarnation begins with an empty cache: every page now comes from the storage node.
    cluster.down()?;
    fs::remove_dir_all(cluster.data().join("compute"))?;
    cluster.up()?;
    equal(&ours, &theirs, binaries).context("after a restart with an empty cache")?;
    let status = cluster.status()?;
    let evicted = status
        .pointer("/compute/status/cache/evicted")
        .and_then(serde_json::Value::as_u64);
    ensure!(
        evicted.is_some_and(|count| count > 0),
        "the cache never had to evict: {status}"
    );

    // Changes after the restart meet pages that were filled from storage.
    sysbench_on_both(cluster, &ours, &theirs, binaries, scratch.path(), "run")?;
    for address in [&ours, &theirs] {
        again(address, binaries)?;
    }
    cluster.kill_everything();
    cluster.up()?;
    equal(&ours, &theirs, binaries).context("after a kill of everything")?;
    stock.stop()
}

fn load(address: &Address, binaries: &PgBinaries, tablespace: &Path) -> Result<()> {
    for database in ["mixed", "bench", "sys"] {
        let create = format!("CREATE DATABASE {database}");
        dump::output(
            address
                .client(binaries, "psql", "postgres")?
                .args(["-X", "-q", "-c", &create]),
        )?;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/mixed.sql");
    let tablespace = tablespace.display().to_string();
    dump::script(
        address,
        binaries,
        "mixed",
        &script,
        &[("tablespace", &tablespace)],
    )?;
    pgbench(address, binaries, &["-i", "-s", "2", "-q"])?;
    pgbench(
        address,
        binaries,
        &["-c", "1", "-t", "1500", "--random-seed=42"],
    )?;
    // The only column that is not a function of the seed.
    let drop = "ALTER TABLE pgbench_history DROP COLUMN mtime";
    dump::output(
        address
            .client(binaries, "psql", "bench")?
            .args(["-X", "-q", "-c", drop]),
    )?;
    Ok(())
}

fn again(address: &Address, binaries: &PgBinaries) -> Result<()> {
    let change = "UPDATE things SET amount = amount + 1 WHERE id % 3 = 0; VACUUM things; \
                  DELETE FROM plain WHERE id % 9 = 0; VACUUM FULL plain; REINDEX TABLE churn; \
                  INSERT INTO serials (v) SELECT 'later' FROM generate_series(1, 50)";
    for statement in change.split(';') {
        let mut psql = address.client(binaries, "psql", "mixed")?;
        dump::output(psql.args(["-X", "-q", "-c", statement]))?;
    }
    // Sequences may skip up to 32 values over a crash, so identities are not compared from here on.
    let renumber = "ALTER TABLE serials DROP COLUMN id";
    dump::output(
        address
            .client(binaries, "psql", "mixed")?
            .args(["-X", "-q", "-c", renumber]),
    )?;
    Ok(())
}

fn pgbench(address: &Address, binaries: &PgBinaries, arguments: &[&str]) -> Result<()> {
    let mut command = address.client(binaries, "pgbench", "bench")?;
    dump::output(command.args(arguments))?;
    Ok(())
}

/// Runs a step of sysbench on Strandline and what it did on stock: its random numbers do not follow the
/// seed, so the statements are taken from the server's log.
fn sysbench_on_both(
    cluster: &Cluster,
    ours: &Address,
    theirs: &Address,
    binaries: &PgBinaries,
    scratch: &Path,
    step: &str,
) -> Result<()> {
    let log = cluster.data().join("logs/postgres.log");
    let before = fs::read_to_string(&log)?.len();
    sysbench(ours, step, "-c log_statement=all")?;
    let text = fs::read_to_string(&log)?;
    let statements = logged_statements(text.get(before..).unwrap_or_default());
    let changes = |one: &&String| one.starts_with("UPDATE") || one.starts_with("INSERT");
    let writes = statements.iter().filter(changes).count();
    ensure!(
        writes >= 4,
        "only {writes} changes in {} logged statements",
        statements.len()
    );
    let file = scratch.join("sysbench.sql");
    fs::write(&file, statements.join(";\n") + ";\n")?;
    dump::script(theirs, binaries, "sys", &file, &[]).context("sysbench's statements on stock")?;
    Ok(())
}

/// The statements in a server log; the further lines of one begin with a tab.
fn logged_statements(log: &str) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut within = false;
    for line in log.lines() {
        if let Some((_, statement)) = line.split_once("LOG:  statement: ") {
            statements.push(statement.to_owned());
            within = true;
        } else if let (true, Some(more), Some(last)) =
            (within, line.strip_prefix('\t'), statements.last_mut())
        {
            last.push(' ');
            last.push_str(more);
        } else {
            within = false;
        }
    }
    statements
}

fn sysbench(address: &Address, step: &str, server_options: &str) -> Result<()> {
    let mut command = Command::new(PathBuf::from("sysbench"));
    command
        .env("PGOPTIONS", server_options)
        .args([
            "oltp_read_write",
            "--db-driver=pgsql",
            "--db-ps-mode=disable",
            "--pgsql-user=postgres",
            "--pgsql-db=sys",
        ])
        .arg(format!("--pgsql-host={}", address.host))
        .arg(format!("--pgsql-port={}", address.port))
        .args([
            "--tables=2",
            "--table-size=20000",
            "--threads=1",
            "--events=400",
            "--time=0",
            "--rand-seed=42",
            step,
        ]);
    dump::output(&mut command)?;
    Ok(())
}

fn equal(ours: &Address, theirs: &Address, binaries: &PgBinaries) -> Result<()> {
    for database in DATABASES {
        let (mine, stock) = (
            dump::database(ours, binaries, database)?,
            dump::database(theirs, binaries, database)?,
        );
        // Tablespace locations are the one thing that must differ.
        if let Some(difference) = dump::difference(&mine, &stock) {
            anyhow::bail!("database {database} differs: {difference}");
        }
    }
    Ok(())
}
