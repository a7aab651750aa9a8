//! The compute node's directory is a cache, and the compute node can be stopped and started.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use strandline_tests::dump::{self, Address};
use strandline_tests::journal::Journal;
use strandline_tests::program;
use strandline_tests::wait::{connected, eventually, on};
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::process::{self, Role};

fn start(major: u32, log_stores: u32) -> Result<(Cluster, PgBinaries)> {
    let binaries = PgBinaries::find(major)?;
    let options = ClusterOptions {
        log_stores,
        ..ClusterOptions::new(binaries.directory())
    };
    Ok((Cluster::start(options)?, binaries))
}

fn pgbench(cluster: &Cluster, binaries: &PgBinaries, arguments: &[&str]) -> Result<()> {
    let mut command = Address::local(cluster.port()).client(binaries, "pgbench", "postgres")?;
    dump::output(command.args(arguments))?;
    Ok(())
}

fn everything(cluster: &Cluster, binaries: &PgBinaries) -> Result<String> {
    dump::database(&Address::local(cluster.port()), binaries, "postgres")
}

fn same(before: &str, after: &str) -> Result<()> {
    match dump::difference(after, before) {
        Some(difference) => anyhow::bail!("what was there has changed: {difference}"),
        None => Ok(()),
    }
}

#[test]
fn a_deleted_compute_directory_costs_nothing() -> Result<()> {
    let (cluster, binaries) = start(15, 1)?;
    on(cluster, |cluster| {
        pgbench(cluster, &binaries, &["-i", "-s", "2", "-q"])?;
        pgbench(cluster, &binaries, &["-c", "4", "-t", "100"])?;
        let before = everything(cluster, &binaries)?;
        ensure!(before.contains("pgbench_accounts"));

        // While everything is stopped.
        cluster.down()?;
        fs::remove_dir_all(cluster.data().join("compute"))?;
        cluster.up()?;
        same(&before, &everything(cluster, &binaries)?).context("after a stop of everything")?;

        // While only the compute node is stopped.
        pgbench(cluster, &binaries, &["-c", "4", "-t", "100"])?;
        let before = everything(cluster, &binaries)?;
        program::done(cluster, &["compute", "stop"])?;
        fs::remove_dir_all(cluster.data().join("compute"))?;
        program::done(cluster, &["compute", "start"])?;
        same(&before, &everything(cluster, &binaries)?).context("after a stop of the compute node")
    })
}

#[test]
fn a_compute_directory_full_of_rubbish_is_replaced() -> Result<()> {
    let (cluster, _) = start(17, 1)?;
    on(cluster, |cluster| {
        let mut sql = connected(cluster)?;
        sql.run("CREATE TABLE t AS SELECT n, md5(n::text) FROM generate_series(1, 20000) n")?;
        let sum = sql.value("SELECT md5(string_agg(t::text, ',' ORDER BY n)) FROM t")?;
        drop(sql);
        cluster.down()?;
        let base = cluster.data().join("compute/pgdata/base");
        let mut spoiled = 0;
        for database in fs::read_dir(&base)? {
            for file in fs::read_dir(database?.path())? {
                let path = file?.path();
                let length = fs::metadata(&path)?.len();
                fs::write(&path, vec![0xA5; usize::try_from(length)?])?;
                spoiled += 1;
            }
        }
        ensure!(spoiled > 100, "only {spoiled} files were spoiled");
        cluster.up()?;
        ensure!(
            connected(cluster)?.value("SELECT md5(string_agg(t::text, ',' ORDER BY n)) FROM t")?
                == sum
        );
        Ok(())
    })
}

#[test]
fn the_compute_node_stops_starts_dies_and_is_listed() -> Result<()> {
    let (cluster, _) = start(15, 1)?;
    on(cluster, |cluster| {
        let mut sql = connected(cluster)?;
        Journal::create(&mut sql)?;
        sql.run("INSERT INTO journal VALUES (0, 0, '')")?;

        let listed = listing(cluster)?;
        ensure!(
            listed.pointer("/status/state") == Some(&"ready".into()),
            "{listed}"
        );
        let timeline = number(&listed, "/status/timeline")?;
        let table = program::done(cluster, &["compute", "list"])?;
        ensure!(
            table.starts_with("NAME") && table.contains("ready"),
            "{table}"
        );

        let stopped = program::about(cluster, &["compute", "stop"])?;
        ensure!(
            stopped.status.success() && stopped.stderr.contains("stopped"),
            "{stopped:?}"
        );
        ensure!(
            cluster.pids(Role::Postmaster).is_empty(),
            "PostgreSQL runs after a stop"
        );
        ensure!(sql.run("SELECT 1").is_err(), "a stopped server answers");
        let listed = listing(cluster)?;
        ensure!(
            listed.pointer("/status/state") == Some(&"stopped".into()),
            "{listed}"
        );
        // Stopping twice is no error.
        program::done(cluster, &["compute", "stop"])?;

        let begun = Instant::now();
        let connection = program::done(cluster, &["compute", "start"])?;
        let mut sql = strandline_tests::sql::Sql::connect(cluster.port())
            .context("compute start returned before the server takes connections")?;
        ensure!(sql.value("SELECT count(*) FROM journal")? == "1");
        println!(
            "compute start to first query: {} ms",
            begun.elapsed().as_millis()
        );
        ensure!(
            connection.trim()
                == format!(
                    "postgresql://postgres@127.0.0.1:{}/postgres",
                    cluster.port()
                ),
            "{connection}"
        );
        let listed = listing(cluster)?;
        ensure!(
            number(&listed, "/status/timeline")? > timeline,
            "a new incarnation has a new timeline: {listed}"
        );
        // Starting what runs is no error and disturbs nobody.
        program::done(cluster, &["compute", "start"])?;
        ensure!(sql.value("SELECT 1")? == "1");

        let postmaster = cluster.pids(Role::Postmaster);
        program::done(cluster, &["compute", "kill"])?;
        let mut sql = connected(cluster)?;
        ensure!(sql.value("SELECT count(*) FROM journal")? == "1");
        ensure!(cluster.pids(Role::Postmaster) != postmaster);

        program::done(cluster, &["compute", "kill", "--stay-down"])?;
        std::thread::sleep(Duration::from_secs(1));
        ensure!(
            cluster.pids(Role::Postmaster).is_empty(),
            "PostgreSQL runs after kill --stay-down"
        );
        program::done(cluster, &["compute", "start"])?;
        ensure!(connected(cluster)?.value("SELECT count(*) FROM journal")? == "1");
        Ok(())
    })
}

#[test]
fn commands_about_a_cluster_that_does_not_run_say_so() -> Result<()> {
    let (cluster, _) = start(15, 1)?;
    on(cluster, |cluster| {
        connected(cluster)?.run("CREATE TABLE kept AS SELECT 1 AS one")?;
        cluster.down()?;
        for arguments in [
            &["status"][..],
            &["status", "--json"],
            &["compute", "list"],
            &["compute", "start"],
            &["compute", "stop"],
            &["compute", "kill"],
        ] {
            program::about(cluster, arguments)?
                .refused(
                    &[
                        "no `strandline up` runs on",
                        &cluster.data().display().to_string(),
                    ],
                    &["strandline up --data"],
                )
                .with_context(|| format!("{arguments:?}"))?;
        }
        cluster.up()?;
        ensure!(connected(cluster)?.value("SELECT one FROM kept")? == "1");
        Ok(())
    })
}

#[test]
fn status_has_the_fields_that_other_tools_read() -> Result<()> {
    let (cluster, binaries) = start(17, 3)?;
    on(cluster, |cluster| {
        pgbench(cluster, &binaries, &["-i", "-s", "1", "-q"])?;
        let status = cluster.status()?;
        ensure!(
            status.pointer("/data").and_then(Value::as_str) == cluster.data().to_str(),
            "{status}"
        );
        ensure!(number(&status, "/system_identifier")? > 0);
        ensure!(number(&status, "/major")? == 17, "{status}");
        ensure!(Some(number(&status, "/pid")?) == cluster.supervisor().map(u64::from));
        ensure!(number(&status, "/quorum")? == 2);
        let stores = status
            .pointer("/log_stores")
            .and_then(Value::as_array)
            .context("log_stores")?;
        ensure!(stores.len() == 3, "{status}");
        for store in stores {
            part(store)?;
            for field in ["flushed", "record_end", "last_record", "quorum", "oldest"] {
                lsn(store, &format!("/status/{field}"))?;
            }
            for field in ["timeline", "promised", "system_identifier"] {
                number(store, &format!("/status/{field}"))?;
            }
            ensure!(
                store.pointer("/status/receiving") == Some(&true.into()),
                "{store}"
            );
            ensure!(
                store.pointer("/status/error") == Some(&Value::Null),
                "{store}"
            );
        }
        let storage = status.pointer("/storage").context("storage")?;
        part(storage)?;
        for field in ["applied", "disk_consistent", "quorum", "oldest"] {
            lsn(storage, &format!("/status/{field}"))?;
        }
        for field in [
            "timeline",
            "records",
            "wal_bytes",
            "pages_served",
            "cache_hits",
            "open_layer_bytes",
            "delta_layers",
            "image_layers",
            "layer_bytes",
            "longest_chain",
        ] {
            number(storage, &format!("/status/{field}"))?;
        }
        let compute = status.pointer("/compute").context("compute")?;
        part(compute)?;
        ensure!(
            compute.pointer("/status/state") == Some(&"ready".into()),
            "{compute}"
        );
        ensure!(
            compute
                .pointer("/status/connection")
                .is_some_and(Value::is_string),
            "{compute}"
        );
        ensure!(
            compute
                .pointer("/status/server_version")
                .and_then(Value::as_str)
                .is_some_and(|v| v.starts_with("17"))
        );
        lsn(compute, "/status/start_lsn")?;
        for field in ["pid", "timeline", "incarnations", "start_ms"] {
            number(compute, &format!("/status/{field}"))?;
        }
        for field in [
            "present_blocks",
            "limit_blocks",
            "base_blocks",
            "fetched",
            "evicted",
            "hits",
            "errors",
            "waiting",
        ] {
            number(compute, &format!("/status/cache/{field}"))?;
        }
        // The three parts agree on how far the log goes, as soon as nothing writes.
        eventually(Duration::from_secs(30), "lag goes to zero", || {
            let status = cluster.status()?;
            let flushed = lsn(&status, "/log_stores/0/status/flushed")?;
            Ok((lsn(&status, "/storage/status/applied")? == flushed).then_some(()))
        })?;
        let table = program::done(cluster, &["status"])?;
        for word in [
            "log-0",
            "log-1",
            "log-2",
            "storage",
            "compute",
            "ready",
            "PostgreSQL",
        ] {
            ensure!(table.contains(word), "{word} is not in\n{table}");
        }
        // A part that died says how, and is back.
        let killed = *cluster
            .pids(Role::LogStore)
            .first()
            .context("a log store")?;
        process::signal(killed, libc::SIGKILL);
        eventually(
            Duration::from_secs(20),
            "the log store is restarted and counted",
            || {
                let status = cluster.status()?;
                let stores = status
                    .pointer("/log_stores")
                    .and_then(Value::as_array)
                    .context("log_stores")?;
                Ok(stores
                    .iter()
                    .any(|store| {
                        store.pointer("/restarts") == Some(&1.into())
                            && store
                                .pointer("/last_exit")
                                .and_then(Value::as_str)
                                .is_some_and(|how| how.contains('9'))
                            && store.pointer("/status/receiving") == Some(&true.into())
                    })
                    .then_some(()))
            },
        )
    })
}

fn part(part: &Value) -> Result<()> {
    ensure!(
        part.pointer("/name").is_some_and(Value::is_string),
        "{part}"
    );
    ensure!(part.pointer("/running") == Some(&true.into()), "{part}");
    ensure!(
        number(part, "/pid")? > 1 && number(part, "/restarts")? == 0,
        "{part}"
    );
    Ok(())
}

fn listing(cluster: &Cluster) -> Result<Value> {
    let text = program::done(cluster, &["compute", "list", "--json"])?;
    let list: Vec<Value> = serde_json::from_str(&text).with_context(|| text.clone())?;
    let [compute] = list.as_slice() else {
        anyhow::bail!("one compute node is listed: {text}")
    };
    Ok(compute.clone())
}

fn number(value: &Value, pointer: &str) -> Result<u64> {
    let found = value
        .pointer(pointer)
        .with_context(|| format!("{pointer} is missing in {value}"))?;
    found
        .as_u64()
        .or_else(|| found.as_str()?.parse().ok())
        .with_context(|| format!("{pointer} is no number: {found}"))
}

/// An LSN as PostgreSQL prints it.
fn lsn(value: &Value, pointer: &str) -> Result<u64> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    let (high, low) = text
        .and_then(|text| text.split_once('/'))
        .with_context(|| format!("{pointer} is no LSN in {value}"))?;
    Ok((u64::from_str_radix(high, 16)? << 32) | u64::from_str_radix(low, 16)?)
}
