//! The storage node goes away under load.
//!
//! **Claim.** While it is away, commits go on, and so do reads of blocks that the compute node has;
//! a read of a block that it does not have waits, can be cancelled, and is answered when the storage
//! node is back. With a limit on the wait, that read fails with an error that PostgreSQL reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use strandline_tests::journal::Journal;
use strandline_tests::program;
use strandline_tests::sql::{Rows, Sql};
use strandline_tests::wait::{connected, eventually, on};
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::process::{self, Role};

/// How long the storage node is away.
fn outage() -> Result<Duration> {
    let seconds = std::env::var("STRANDLINE_OUTAGE_SECONDS").unwrap_or_else(|_| "8".to_owned());
    Ok(Duration::from_secs(seconds.parse().context(
        "STRANDLINE_OUTAGE_SECONDS is a number of seconds",
    )?))
}

/// No statement that does not need the storage node may take longer than this, on a busy machine.
const PROMPT: Duration = Duration::from_secs(3);

const COLD: &str = "SELECT count(*), sum(length(pad)) FROM";
const HOT: &str = "SELECT count(*), sum(n) FROM hot";

/// A cluster whose compute node has every block of `hot` and none of `cold` and `colder`.
fn prepare(pg: u32, arguments: &[&str]) -> Result<Cluster> {
    let binaries = PgBinaries::find(pg)?;
    let cluster = Cluster::start(ClusterOptions {
        arguments: arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect(),
        // VACUUM would read the cold tables by itself.
        settings: vec!["autovacuum = off".to_owned()],
        ..ClusterOptions::new(binaries.directory())
    })?;
    let mut sql = connected(&cluster)?;
    Journal::create(&mut sql)?;
    sql.run(
        "CREATE TABLE hot AS SELECT n FROM generate_series(1, 20000) n;
         CREATE TABLE cold AS SELECT repeat('x', 900) AS pad FROM generate_series(1, 4000);
         CREATE TABLE colder AS SELECT repeat('y', 900) AS pad FROM generate_series(1, 4000)",
    )?;
    drop(sql);
    program::done(&cluster, &["compute", "stop"])?;
    program::done(&cluster, &["compute", "start"])?;
    let mut sql = connected(&cluster)?;
    ensure!(sql.run(HOT)? == rows("20000", "200010000"));
    Ok(cluster)
}

fn rows(count: &str, sum: &str) -> Rows {
    vec![vec![Some(count.to_owned()), Some(sum.to_owned())]]
}

/// A connection that has everything it needs to read `table` but the table's blocks.
fn about_to_read(cluster: &Cluster, table: &str) -> Result<Sql> {
    let mut sql = connected(cluster)?;
    sql.run(&format!("EXPLAIN {COLD} {table}"))?;
    sql.run(HOT)?;
    Ok(sql)
}

/// A statement that runs on a thread of its own.
struct Waiting {
    done: Arc<AtomicBool>,
    thread: JoinHandle<(Sql, Result<Rows>)>,
}

impl Waiting {
    fn start(mut sql: Sql, statement: String) -> Waiting {
        let done = Arc::new(AtomicBool::new(false));
        let finished = Arc::clone(&done);
        let thread = thread::spawn(move || {
            let result = sql.run(&statement);
            finished.store(true, Ordering::SeqCst);
            (sql, result)
        });
        Waiting { done, thread }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    fn result(self) -> Result<(Sql, Result<Rows>)> {
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))
    }
}

/// Reads `hot` again and again; returns how often, and the longest read.
struct HotReader {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    thread: JoinHandle<Result<Duration>>,
}

impl HotReader {
    fn start(mut sql: Sql) -> HotReader {
        let (stop, reads) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopping, counted) = (Arc::clone(&stop), Arc::clone(&reads));
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopping.load(Ordering::SeqCst) {
                let begun = Instant::now();
                ensure!(sql.run(HOT)? == rows("20000", "200010000"));
                longest = longest.max(begun.elapsed());
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Ok(longest)
        });
        HotReader {
            stop,
            reads,
            thread,
        }
    }

    fn finish(self) -> Result<(u64, Duration)> {
        self.stop.store(true, Ordering::SeqCst);
        let longest = self
            .thread
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        Ok((self.reads.load(Ordering::SeqCst), longest))
    }
}

/// Everything that is claimed of an outage; `begin` makes the storage node silent and returns the
/// process to continue.
fn outage_under_load(cluster: &Cluster, begin: impl FnOnce(&Cluster) -> Result<u32>) -> Result<()> {
    let mut admin = connected(cluster)?;
    // Everything the cancel below needs is local after this; no process has the id 0.
    admin.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = 0")?;
    let cold = about_to_read(cluster, "cold")?;
    let mut colder = about_to_read(cluster, "colder")?;
    let colder_pid = colder.value("SELECT pg_backend_pid()")?;
    let hot = HotReader::start(connected(cluster)?);
    let journal = Journal::start(cluster.port(), 4, 0, 100);
    eventually(Duration::from_secs(20), "clients write", || {
        Ok((journal.count() > 20).then_some(()))
    })?;

    let silent = begin(cluster)?;
    let begun = Instant::now();
    let cold = Waiting::start(cold, format!("{COLD} cold"));
    let colder = Waiting::start(colder, format!("{COLD} colder"));
    thread::sleep(Duration::from_millis(1500));
    ensure!(
        !cold.is_done() && !colder.is_done(),
        "an absent block was read without the storage node"
    );

    // Cancelling.
    let cancelled = Instant::now();
    admin.run(&format!("SELECT pg_cancel_backend({colder_pid})"))?;
    eventually(PROMPT, "the cancelled statement ends", || {
        Ok(colder.is_done().then_some(()))
    })?;
    let (mut colder, result) = colder.result()?;
    let error = format!(
        "{:#}",
        result.err().context("the cancelled statement succeeded")?
    );
    ensure!(
        error.contains("canceling statement") || error.contains("could not read block"),
        "a cancelled read says: {error}"
    );
    println!(
        "cancelled after {} ms: {error}",
        cancelled.elapsed().as_millis()
    );
    ensure!(
        colder.value("SELECT 1")? == "1",
        "the connection is usable after the cancel"
    );

    thread::sleep(outage()?.saturating_sub(begun.elapsed()));
    let end = Instant::now();
    ensure!(
        !cold.is_done(),
        "an absent block was read without the storage node"
    );
    let pause = journal.longest_pause(begun + Duration::from_millis(100), end);
    ensure!(
        pause < PROMPT,
        "no commit was acknowledged for {} ms",
        pause.as_millis()
    );
    process::signal(silent, libc::SIGCONT);

    eventually(
        Duration::from_secs(60),
        "the waiting read completes",
        || Ok(cold.is_done().then_some(())),
    )?;
    let (_, result) = cold.result()?;
    ensure!(result? == rows("4000", "3600000"));
    ensure!(colder.run(&format!("{COLD} colder"))? == rows("4000", "3600000"));
    let (reads, longest) = hot.finish()?;
    ensure!(
        longest < PROMPT && reads > 10,
        "{reads} reads of local blocks, the longest {longest:?}"
    );
    let acknowledged = journal.finish()?;
    println!(
        "{} commits, longest pause {} ms; {reads} local reads, the longest {} ms",
        acknowledged.len(),
        pause.as_millis(),
        longest.as_millis()
    );
    acknowledged.check(&mut admin)?;
    caught_up(cluster, &mut admin)?;
    // From storage alone.
    program::done(cluster, &["compute", "kill"])?;
    let mut fresh = connected(cluster)?;
    acknowledged.check(&mut fresh)?;
    ensure!(fresh.run(&format!("{COLD} cold"))? == rows("4000", "3600000"));
    Ok(())
}

/// Waits until the storage node has everything that is durable now.
fn caught_up(cluster: &Cluster, sql: &mut Sql) -> Result<()> {
    let flushed = sql.value("SELECT pg_current_wal_flush_lsn()")?;
    eventually(
        Duration::from_secs(60),
        "the storage node catches up",
        || {
            let status = cluster.status()?;
            let applied = status
                .pointer("/storage/status/applied")
                .and_then(|lsn| lsn.as_str())
                .context("status has storage.status.applied")?;
            Ok((sql.value(&format!(
                "SELECT '{applied}'::pg_lsn >= '{flushed}'::pg_lsn"
            ))? == "t")
                .then_some(()))
        },
    )
}

fn storage_node(cluster: &Cluster) -> Result<u32> {
    cluster
        .pids(Role::StorageNode)
        .first()
        .copied()
        .context("a storage node runs")
}

#[test]
fn a_stopped_storage_node_delays_only_reads_of_absent_blocks() -> Result<()> {
    on(prepare(15, &[])?, |cluster| {
        outage_under_load(cluster, |cluster| {
            let pid = storage_node(cluster)?;
            process::signal(pid, libc::SIGSTOP);
            Ok(pid)
        })
    })
}

#[test]
fn a_killed_storage_node_that_is_slow_to_come_back_delays_only_reads_of_absent_blocks() -> Result<()>
{
    on(prepare(17, &[])?, |cluster| {
        outage_under_load(cluster, |cluster| {
            let old = storage_node(cluster)?;
            process::signal(old, libc::SIGKILL);
            // The supervisor brings a new one at once; it is held before it can serve for long.
            let new = eventually(
                Duration::from_secs(10),
                "a new storage node is started",
                || {
                    Ok(cluster
                        .pids(Role::StorageNode)
                        .into_iter()
                        .find(|pid| *pid != old))
                },
            )?;
            process::signal(new, libc::SIGSTOP);
            Ok(new)
        })
    })
}

#[test]
fn with_a_limit_a_read_of_an_absent_block_fails_with_an_error_and_works_later() -> Result<()> {
    on(prepare(15, &["--read-timeout", "2"])?, |cluster| {
        let mut cold = about_to_read(cluster, "cold")?;
        let mut admin = connected(cluster)?;
        // What the insert below needs of the catalogs is local after this.
        admin.run("INSERT INTO journal VALUES (1, 1, '')")?;
        let pid = storage_node(cluster)?;
        process::signal(pid, libc::SIGSTOP);
        let begun = Instant::now();
        let result = cold.run(&format!("{COLD} cold"));
        let took = begun.elapsed();
        // The transaction that failed is over; others were never disturbed.
        let others = admin.run("INSERT INTO journal VALUES (1, 2, '')");
        process::signal(pid, libc::SIGCONT);
        let error = format!("{:#}", result.err().context("the read succeeded")?);
        ensure!(
            error.contains("could not read block"),
            "the error is: {error}"
        );
        ensure!(
            (Duration::from_secs(1)..Duration::from_secs(10)).contains(&took),
            "the read failed after {took:?}, not after 2 s"
        );
        others.context("a commit during the outage")?;
        let log = cluster.log("postgres")?;
        ensure!(
            log.contains("storage"),
            "the server's log does not name the storage node:\n{log}"
        );
        eventually(Duration::from_secs(30), "the read works again", || {
            Ok((cold.run(&format!("{COLD} cold"))? == rows("4000", "3600000")).then_some(()))
        })?;
        ensure!(admin.value("SELECT count(*) FROM journal")? == "2");
        Ok(())
    })
}

#[test]
fn status_says_that_a_silent_storage_node_is_silent() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::start(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let pid = storage_node(cluster)?;
            process::signal(pid, libc::SIGSTOP);
            let status = cluster.status();
            let table = program::done(cluster, &["status"]);
            process::signal(pid, libc::SIGCONT);
            let (status, table) = (status?, table?);
            ensure!(
                status.pointer("/storage/running") == Some(&true.into()),
                "{status}"
            );
            ensure!(
                status
                    .pointer("/storage/status")
                    .is_some_and(serde_json::Value::is_null),
                "{status}"
            );
            let line = table.lines().find(|line| line.starts_with("storage"));
            ensure!(line.is_some_and(|line| line.contains("silent")), "{table}");
            ensure!(connected(cluster)?.value("SELECT 1")? == "1");
            Ok(())
        },
    )
}
