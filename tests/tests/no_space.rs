//! A file system is full: the log store's, the storage node's, the compute node's.
//!
//! **Claim.** Commits stop, or statements fail, with a message that names the part and the remedy; when
//! there is space again the part goes on, and everything that was acknowledged is there.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use strandline_tests::journal::Journal;
use strandline_tests::mounts::{in_own_namespace, resize, small};
use strandline_tests::program;
use strandline_tests::wait::{connected, eventually, on};
use strandline_tests::{dump, sql::Sql};
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};

const PATIENCE: Duration = Duration::from_secs(60);

/// A stopped cluster with a journal.
fn stopped(log_stores: u32) -> Result<Cluster> {
    let binaries = PgBinaries::find(15)?;
    let mut cluster = Cluster::start(ClusterOptions {
        log_stores,
        settings: vec!["autovacuum = off".to_owned()],
        ..ClusterOptions::new(binaries.directory())
    })?;
    Journal::create(&mut connected(&cluster)?)?;
    cluster.down()?;
    Ok(cluster)
}

/// Megabytes that `directory` takes.
fn used(directory: &Path) -> Result<u32> {
    let text = dump::output(Command::new("du").arg("-sm").arg(directory))?;
    text.split_whitespace()
        .next()
        .context("du prints a number")?
        .parse()
        .context("du prints a number")
}

/// Waits until `up` says that `part` has no space; the message with its hint.
fn says_no_space(cluster: &Cluster, part: &str) -> Result<String> {
    eventually(
        PATIENCE,
        &format!("`up` says that {part} has no space"),
        || {
            let log = cluster.up_log()?;
            let mut lines = log.lines();
            let message =
                lines.find(|line| line.contains(part) && line.contains("No space left on device"));
            let hint = lines
                .next()
                .filter(|line| line.contains("hint: "))
                .unwrap_or_default();
            Ok(message.map(|message| format!("{message} {hint}")))
        },
    )
}

/// Waits until nothing has been acknowledged for two seconds.
fn commits_have_stopped(journal: &Journal) -> Result<usize> {
    let mut last = (journal.count(), Instant::now());
    eventually(PATIENCE, "commits stop", || {
        let count = journal.count();
        if count != last.0 {
            last = (count, Instant::now());
        }
        Ok((last.1.elapsed() > Duration::from_secs(2)).then_some(count))
    })
}

#[test]
fn a_full_log_store_stops_commits_and_goes_on_when_there_is_space() -> Result<()> {
    in_own_namespace(
        "a_full_log_store_stops_commits_and_goes_on_when_there_is_space",
        || {
            on(stopped(1)?, |cluster| {
                let directory = cluster.data().join("log-0");
                // Every segment is 16 MB; a new incarnation needs one or two.
                let size = used(&directory)? + 50;
                small(&directory, size)?;
                cluster.up()?;
                let journal = Journal::start(cluster.port(), 4, 0, 60_000);
                let message = says_no_space(cluster, "log-0")?;
                println!("{message}");
                ensure!(message.contains("free space"), "no remedy: {message}");
                ensure!(
                    message.contains(&directory.display().to_string()),
                    "no place: {message}"
                );
                let stopped_at = commits_have_stopped(&journal)?;
                let status = program::done(cluster, &["status"])?;
                ensure!(
                    status.contains("No space left on device"),
                    "status does not say why:\n{status}"
                );

                resize(&directory, size + 200)?;
                eventually(PATIENCE, "commits go on by themselves", || {
                    Ok((journal.count() > stopped_at + 10).then_some(()))
                })?;
                let acknowledged = journal.finish()?;
                acknowledged.check(&mut connected(cluster)?)?;
                program::done(cluster, &["compute", "kill"])?;
                acknowledged
                    .check(&mut connected(cluster)?)
                    .context("after a new incarnation")
            })
        },
    )
}

#[test]
fn one_full_log_store_of_three_stops_nothing() -> Result<()> {
    in_own_namespace("one_full_log_store_of_three_stops_nothing", || {
        on(stopped(3)?, |cluster| {
            let directory = cluster.data().join("log-1");
            let size = used(&directory)? + 50;
            small(&directory, size)?;
            cluster.up()?;
            let journal = Journal::start(cluster.port(), 4, 0, 60_000);
            let message = says_no_space(cluster, "log-1")?;
            ensure!(message.contains("free space"), "no remedy: {message}");
            let count = journal.count();
            eventually(PATIENCE, "commits go on with two stores", || {
                Ok((journal.count() > count + 100).then_some(()))
            })?;
            let acknowledged = journal.finish()?;
            resize(&directory, size + 400)?;
            eventually(PATIENCE, "the store catches up", || {
                let status = cluster.status()?;
                let flushed = |index: usize| {
                    status
                        .pointer(&format!("/log_stores/{index}/status/flushed"))
                        .and_then(Value::as_str)
                        .map(str::to_owned)
                };
                Ok((flushed(1).is_some() && flushed(1) == flushed(0)).then_some(()))
            })?;
            acknowledged.check(&mut connected(cluster)?)
        })
    })
}

/// Asks the storage node to write what it has in memory; its answer.
fn flush(cluster: &Cluster) -> Result<Value> {
    let endpoint = rpc::Endpoint::Unix(cluster.run_dir().join("storage.ctl"));
    let mut client = rpc::Client::connect(&endpoint, PATIENCE)?;
    Ok(client
        .call::<Value, Value>(&json!({"request": "flush"}), &[])?
        .0)
}

#[test]
fn a_full_storage_node_says_so_and_goes_on_when_there_is_space() -> Result<()> {
    in_own_namespace(
        "a_full_storage_node_says_so_and_goes_on_when_there_is_space",
        || {
            on(stopped(1)?, |cluster| {
                let directory = cluster.data().join("storage");
                let size = used(&directory)? + 8;
                small(&directory, size)?;
                cluster.up()?;
                let journal = Journal::start(cluster.port(), 4, 0, 60_000);
                eventually(PATIENCE, "clients write", || {
                    Ok((journal.count() > 400).then_some(()))
                })?;
                // It has 24 MB in memory and is asked to write them to 8 MB; it may end before it answers.
                if let Ok(answer) = flush(cluster) {
                    ensure!(
                        answer["response"] == "refused",
                        "24 MB were written to 8 MB: {answer}"
                    );
                }
                let message = says_no_space(cluster, "storage")?;
                println!("{message}");
                ensure!(
                    message.contains("free space")
                        && message.contains(&directory.display().to_string()),
                    "no place or no remedy: {message}"
                );
                eventually(PATIENCE, "status says how the storage node ended", || {
                    let status = cluster.status()?;
                    let how = status.pointer("/storage/last_exit").and_then(Value::as_str);
                    Ok(how
                        .is_some_and(|how| how.contains("No space left on device"))
                        .then_some(()))
                })?;
                // The log takes commits all the same, and everything can be read.
                let count = journal.count();
                eventually(PATIENCE, "commits go on", || {
                    Ok((journal.count() > count + 20).then_some(()))
                })?;
                let acknowledged = journal.finish()?;
                program::done(cluster, &["compute", "kill"])?;
                acknowledged
                    .check(&mut connected(cluster)?)
                    .context("while it is full")?;

                resize(&directory, size + 200)?;
                eventually(PATIENCE, "the storage node writes by itself", || {
                    Ok((flush(cluster)?["response"] == "status").then_some(()))
                })?;
                acknowledged.check(&mut connected(cluster)?)?;
                cluster.kill_everything();
                cluster.up()?;
                acknowledged
                    .check(&mut connected(cluster)?)
                    .context("after a kill of everything")
            })
        },
    )
}

#[test]
fn a_full_compute_directory_fails_statements_and_loses_nothing() -> Result<()> {
    in_own_namespace(
        "a_full_compute_directory_fails_statements_and_loses_nothing",
        || {
            on(stopped(1)?, |cluster| {
                let directory = cluster.data().join("compute");
                small(&directory, 90)?;
                cluster.up()?;
                let mut sql = connected(cluster)?;
                sql.run("INSERT INTO journal VALUES (9, 1, '')")?;
                // 200 MB into 90 MB, in transactions that can be acknowledged one by one.
                let mut acknowledged = 0;
                let error = loop {
                    let insert = "INSERT INTO journal SELECT 8, nextval('numbers'), string_agg(md5(i::text || random()), '') \
                              FROM generate_series(1, 30000) i";
                    if acknowledged == 0 {
                        sql.run("CREATE SEQUENCE numbers")?;
                    }
                    match sql.run(insert) {
                        Ok(_) => acknowledged += 1,
                        Err(error) => break format!("{error:#}"),
                    }
                    ensure!(acknowledged < 200, "200 MB went into 90 MB");
                };
                println!("after {acknowledged} MB: {error}");
                // ENOSPC and a short write are the same condition to PostgreSQL: SQLSTATE disk_full.
                ensure!(
                    error.contains("SQLSTATE 53100")
                        || cluster.log("postgres")?.contains("No space left on device"),
                    "the statement failed with: {error}"
                );
                // Whether PostgreSQL survived or was replaced: what was acknowledged is there.
                let present =
                    |sql: &mut Sql| sql.value("SELECT count(*) FROM journal WHERE client = 8");
                let count: usize = present(&mut connected(cluster)?)?.parse()?;
                ensure!(
                    count == acknowledged || count == acknowledged + 1,
                    "{count} of {acknowledged} are there"
                );
                resize(&directory, 600)?;
                let mut sql = connected(cluster)?;
                sql.run("INSERT INTO journal SELECT 7, i, repeat('x', 1000) FROM generate_series(1, 20000) i")?;
                program::done(cluster, &["compute", "stop"])?;
                program::done(cluster, &["compute", "start"])?;
                let mut sql = connected(cluster)?;
                let now: usize = present(&mut sql)?.parse()?;
                ensure!(now == count, "{now} of {count} are there");
                ensure!(sql.value("SELECT count(*) FROM journal WHERE client = 7")? == "20000");
                Ok(())
            })
        },
    )
}
