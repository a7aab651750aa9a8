//! Stock tools follow a log store by the stock protocol.
//!
//! **Claim.** `pg_receivewal` gets from a log store the same WAL that the primary writes, and a stock
//! hot standby follows a log store, over a change of timeline when the compute node is replaced.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strandline_tests::dump::{self, Address};
use strandline_tests::journal::Journal;
use strandline_tests::program;
use strandline_tests::segment::segments;
use strandline_tests::sql::Sql;
use strandline_tests::wait::{connected, eventually, on};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::process;
use testkit::{OrdinaryUser, PgBinaries};

const PATIENCE: Duration = Duration::from_secs(60);

/// `host` and `port` of the replication server of log store `index`.
fn log_store(cluster: &Cluster, index: u32) -> Address {
    Address {
        host: cluster
            .run_dir()
            .join(format!("log-{index}"))
            .display()
            .to_string(),
        port: 5432,
    }
}

/// A program that runs beside the cluster; killed when dropped.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    fn start(command: &mut Command, log: &Path) -> Result<Program> {
        let file = File::create(log)?;
        let child = command.stdout(file.try_clone()?).stderr(file).spawn()?;
        Ok(Program {
            child,
            log: log.to_owned(),
        })
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it with `signal`; true when it ended by itself with exit code 0.
    fn end(&mut self, signal: i32) -> Result<bool> {
        process::signal(self.child.id(), signal);
        Ok(program::wait(&mut self.child, PATIENCE)?.success())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory beside the cluster's, of the user that the server runs as.
fn directory(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let path = cluster.directory().join(name);
    fs::create_dir(&path)?;
    OrdinaryUser::current()?.own(&path)?;
    Ok(path)
}

/// The timeline of the running incarnation and the LSN at which it begins.
fn incarnation(cluster: &Cluster) -> Result<(u64, String)> {
    let status = cluster.status()?;
    let timeline = status
        .pointer("/compute/status/timeline")
        .and_then(serde_json::Value::as_u64);
    let start = status
        .pointer("/compute/status/start_lsn")
        .and_then(|lsn| lsn.as_str());
    Ok((
        timeline.context("timeline")?,
        start.context("start_lsn")?.to_owned(),
    ))
}

/// What `pg_waldump` prints of the records from `start` to `end` in `directory`.
fn waldump(
    binaries: &PgBinaries,
    directory: &Path,
    timeline: u64,
    start: &str,
    end: &str,
) -> Result<String> {
    let mut command = OrdinaryUser::current()?.command(&binaries.program("pg_waldump")?);
    command
        .arg("-p")
        .arg(directory)
        .args(["-t", &timeline.to_string(), "-s", start, "-e", end]);
    let text = dump::output(&mut command)?;
    ensure!(
        text.lines().count() > 50,
        "too few records to prove anything:\n{text}"
    );
    Ok(text)
}

/// Copies what was received, with the unfinished segment under its final name.
fn received(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let copy = to.join(name.trim_end_matches(".partial"));
        fs::copy(&path, &copy)?;
        OrdinaryUser::current()?.own(&copy)?;
    }
    OrdinaryUser::current()?.own(to)
}

/// A load with many kinds of records.
fn load(sql: &mut Sql, name: &str) -> Result<String> {
    sql.run(&format!(
        "CREATE TABLE {name} (n int PRIMARY KEY, t text, words text[]);
         CREATE INDEX ON {name} USING gin (words);
         INSERT INTO {name} SELECT n, repeat(md5(n::text), 3), ARRAY['a' || n % 7, 'b' || n % 11] FROM generate_series(1, 3000) n;
         UPDATE {name} SET t = t || 'x' WHERE n % 3 = 0;
         DELETE FROM {name} WHERE n % 5 = 0"
    ))?;
    sql.run(&format!("VACUUM {name}"))?;
    sql.run(&format!("INSERT INTO {name} VALUES (-1, 'last', '{{}}')"))?;
    sql.value("SELECT pg_current_wal_flush_lsn()")
}

/// Waits until the records up to `end` have been received, and compares them with the primary's.
fn same_records(
    cluster: &Cluster,
    binaries: &PgBinaries,
    receiving: &Program,
    from: &Path,
    copy: &Path,
    end: &str,
) -> Result<()> {
    let (timeline, start) = incarnation(cluster)?;
    let primary = cluster.data().join("compute/pgdata/pg_wal");
    let theirs = waldump(binaries, &primary, timeline, &start, end)?;
    let ours = eventually(PATIENCE, "pg_receivewal has all records", || {
        received(from, copy)?;
        waldump(binaries, copy, timeline, &start, end).map(Some)
    })
    .with_context(|| receiving.said())?;
    if let Some(difference) = dump::difference(&ours, &theirs) {
        anyhow::bail!("received records differ from the primary's: {difference}");
    }
    println!(
        "{} records on timeline {timeline} are the same",
        ours.lines().count()
    );
    Ok(())
}

#[test]
fn pg_receivewal_gets_the_primarys_records_from_a_log_store() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    let options = ClusterOptions {
        log_stores: 3,
        ..ClusterOptions::new(binaries.directory())
    };
    on(Cluster::start(options)?, |cluster| {
        let archive = directory(cluster, "archive")?;
        let address = log_store(cluster, 1);
        let mut command = OrdinaryUser::current()?.command(&binaries.program("pg_receivewal")?);
        command
            .args([
                "-h",
                &address.host,
                "-p",
                &address.port.to_string(),
                "-U",
                "strandline_replication",
            ])
            .args(["--no-loop", "--verbose", "--status-interval=1", "-D"])
            .arg(&archive);
        let mut receiving =
            Program::start(&mut command, &cluster.directory().join("receivewal.log"))?;
        eventually(PATIENCE, "pg_receivewal has begun", || {
            Ok((!fs::read_dir(&archive)?
                .flatten()
                .collect::<Vec<_>>()
                .is_empty())
            .then_some(()))
        })
        .with_context(|| receiving.said())?;

        let mut sql = connected(cluster)?;
        let end = load(&mut sql, "first")?;
        let copy = cluster.directory().join("copy-1");
        same_records(cluster, &binaries, &receiving, &archive, &copy, &end)?;
        // A whole segment, closed early.
        sql.run("SELECT pg_switch_wal()")?;
        let end = load(&mut sql, "second")?;
        let copy = cluster.directory().join("copy-2");
        same_records(cluster, &binaries, &receiving, &archive, &copy, &end)?;
        ensure!(
            !segments(&archive)?.is_empty(),
            "no segment was finished: {}",
            receiving.said()
        );

        // A new incarnation: a new timeline, which pg_receivewal follows by itself.
        let (before, _) = incarnation(cluster)?;
        program::done(cluster, &["compute", "kill"])?;
        let mut sql = connected(cluster)?;
        let end = load(&mut sql, "third")?;
        ensure!(incarnation(cluster)?.0 > before);
        let copy = cluster.directory().join("copy-3");
        same_records(cluster, &binaries, &receiving, &archive, &copy, &end)?;
        let history = format!("{:08X}.history", incarnation(cluster)?.0);
        ensure!(
            archive.join(&history).is_file(),
            "{history} was not received: {}",
            receiving.said()
        );

        ensure!(
            receiving.end(libc::SIGINT)?,
            "pg_receivewal failed: {}",
            receiving.said()
        );
        Ok(())
    })
}

/// A stock standby of `cluster` that follows log store `index`.
fn standby(cluster: &Cluster, binaries: &PgBinaries, index: u32) -> Result<(Program, Address)> {
    let home = directory(cluster, "standby")?;
    let pgdata = home.join("pgdata");
    let mut backup = OrdinaryUser::current()?.command(&binaries.program("pg_basebackup")?);
    backup
        .arg("-h")
        .arg(cluster.run_dir())
        .args([
            "-p",
            &cluster.port().to_string(),
            "-U",
            "postgres",
            "-c",
            "fast",
            "-X",
            "stream",
            "-D",
        ])
        .arg(&pgdata);
    dump::output(&mut backup).context("pg_basebackup from the primary")?;
    let source = log_store(cluster, index);
    let mut conf = File::create(pgdata.join("postgresql.conf"))?;
    write!(
        conf,
        "listen_addresses = ''\nport = 5432\nunix_socket_directories = '{}'\nfsync = off\nhot_standby = on\n\
         wal_retrieve_retry_interval = '200ms'\nmax_connections = 100\n\
         primary_conninfo = 'host={} port={} user=strandline_replication application_name=standby'\n",
        home.display(),
        source.host,
        source.port
    )?;
    File::create(pgdata.join("standby.signal"))?;
    fs::write(pgdata.join("postgresql.auto.conf"), "")?;
    fs::write(pgdata.join("pg_hba.conf"), "local all all trust\n")?;
    fs::write(pgdata.join("pg_ident.conf"), "")?;
    for name in [
        "postgresql.conf",
        "postgresql.auto.conf",
        "standby.signal",
        "pg_hba.conf",
        "pg_ident.conf",
    ] {
        OrdinaryUser::current()?.own(&pgdata.join(name))?;
    }
    let mut server = OrdinaryUser::current()?.command(&binaries.program("postgres")?);
    server.arg("-D").arg(&pgdata);
    let server = Program::start(
        server.stdin(Stdio::null()),
        &cluster.directory().join("standby.log"),
    )?;
    Ok((
        server,
        Address {
            host: home.display().to_string(),
            port: 5432,
        },
    ))
}

/// Waits until the standby has replayed everything the primary has made durable.
fn replayed(server: &Program, standby: &Address, primary: &mut Sql) -> Result<()> {
    let flushed = primary.value("SELECT pg_current_wal_flush_lsn()")?;
    eventually(PATIENCE, "the standby has replayed everything", || {
        let mut sql = Sql::connect_to(&standby.host, standby.port, "postgres")?;
        let there = sql.value(&format!("SELECT pg_last_wal_replay_lsn() >= '{flushed}'"))?;
        Ok((there == "t").then_some(()))
    })
    .with_context(|| server.said())
}

fn equal(cluster: &Cluster, standby: &Address, binaries: &PgBinaries) -> Result<()> {
    let ours = dump::database(standby, binaries, "postgres")?;
    let theirs = dump::database(&Address::local(cluster.port()), binaries, "postgres")?;
    match dump::difference(&ours, &theirs) {
        Some(difference) => anyhow::bail!("the standby differs from the primary: {difference}"),
        None => Ok(()),
    }
}

#[test]
fn a_stock_standby_follows_a_log_store_over_a_new_timeline() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::start(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut sql = connected(cluster)?;
            load(&mut sql, "before")?;
            Journal::create(&mut sql)?;
            let (mut server, address) = standby(cluster, &binaries, 0)?;
            load(&mut sql, "first")?;
            replayed(&server, &address, &mut sql)?;
            equal(cluster, &address, &binaries)?;
            let from = Sql::connect_to(&address.host, address.port, "postgres")?
                .value("SELECT sender_host FROM pg_stat_wal_receiver")?;
            ensure!(
                from == log_store(cluster, 0).host,
                "the standby follows {from}"
            );

            // The compute node dies under load; the standby goes over to the new timeline by itself.
            let journal = Journal::start(cluster.port(), 4, 0, 200);
            eventually(PATIENCE, "clients write", || {
                Ok((journal.count() > 50).then_some(()))
            })?;
            program::done(cluster, &["compute", "kill"])?;
            let mut sql = connected(cluster)?;
            let count = journal.count();
            eventually(PATIENCE, "clients write again", || {
                Ok((journal.count() > count + 50).then_some(()))
            })?;
            let acknowledged = journal.finish()?;
            load(&mut sql, "second")?;
            replayed(&server, &address, &mut sql)?;
            acknowledged.check(&mut sql).context("on the primary")?;
            let mut reader = Sql::connect_to(&address.host, address.port, "postgres")?;
            acknowledged.check(&mut reader).context("on the standby")?;
            ensure!(reader.value("SELECT pg_is_in_recovery()")? == "t");
            equal(cluster, &address, &binaries)?;

            // And over a clean stop and start.
            program::done(cluster, &["compute", "stop"])?;
            program::done(cluster, &["compute", "start"])?;
            let mut sql = connected(cluster)?;
            load(&mut sql, "third")?;
            replayed(&server, &address, &mut sql)?;
            equal(cluster, &address, &binaries)?;
            drop(reader);
            ensure!(
                server.end(libc::SIGINT)?,
                "the standby failed: {}",
                server.said()
            );
            Ok(())
        },
    )
}
