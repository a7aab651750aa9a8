//! Importing stopped stock clusters.
//!
//! **Claim.** What is imported equals the source, with data checksums on or off; a cluster that is
//! running or was not stopped cleanly is refused with the remedy; an interrupted import leaves nothing
//! half-made, and the source is never changed.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strandline_tests::dump::{self, Address};
use strandline_tests::program::{self, import_command, to_end};
use strandline_tests::wait::{connected, eventually, on};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::{PgBinaries, StockServer, process};

/// A stock cluster with data, beside `cluster`; it runs.
fn stock(cluster: &Cluster, binaries: &PgBinaries, initdb: &[&str]) -> Result<StockServer> {
    let directory = cluster.directory().join("stock");
    let mut stock = StockServer::init(
        binaries.clone(),
        &directory,
        initdb,
        &[("max_prepared_transactions", "5")],
    )?;
    stock.start()?;
    stock.psql(
        "postgres",
        "CREATE TABLE item (n int PRIMARY KEY, t text, words text[]);
         INSERT INTO item SELECT n, repeat(md5(n::text), 4), ARRAY['a' || n % 7] FROM generate_series(1, 20000) n;
         CREATE INDEX item_words ON item USING gin (words);
         DELETE FROM item WHERE n % 10 = 0;
         CREATE SEQUENCE ticket;
         CREATE UNLOGGED TABLE passing AS SELECT 1 AS one;
         CREATE ROLE reader",
    )?;
    stock.psql("postgres", "VACUUM item")?;
    stock.psql(
        "postgres",
        "BEGIN; INSERT INTO item VALUES (-1, 'prepared', NULL); PREPARE TRANSACTION 'later'",
    )?;
    stock.psql("postgres", "SELECT nextval('ticket')")?;
    stock.psql("postgres", "CREATE DATABASE second")?;
    stock.psql("second", "CREATE TABLE there AS SELECT 2 AS two")?;
    Ok(stock)
}

fn contents(address: &Address, binaries: &PgBinaries) -> Result<String> {
    Ok(dump::database(address, binaries, "postgres")?
        + &dump::database(address, binaries, "second")?)
}

fn of_stock(stock: &StockServer) -> Address {
    Address {
        host: stock.socket_dir().display().to_string(),
        port: stock.port(),
    }
}

/// Runs the import, starts the cluster and compares.
fn imported(
    cluster: &mut Cluster,
    stock: &StockServer,
    before: &str,
    binaries: &PgBinaries,
) -> Result<()> {
    let ended = to_end(&mut import_command(cluster, &stock.data_dir())?)?;
    ensure!(ended.status.success(), "{ended:?}");
    ensure!(
        ended.stdout.is_empty() && ended.stderr.contains("strandline up --data"),
        "{ended:?}"
    );
    cluster.up()?;
    let after = contents(&Address::local(cluster.port()), binaries)?;
    if let Some(difference) = dump::difference(&after, before) {
        anyhow::bail!("what was imported differs: {difference}");
    }
    let mut sql = connected(cluster)?;
    sql.run("COMMIT PREPARED 'later'")?;
    ensure!(sql.value("SELECT t FROM item WHERE n = -1")? == "prepared");
    ensure!(sql.value("SELECT nextval('ticket') > 1")? == "t");
    ensure!(sql.value("SELECT count(*) FROM pg_roles WHERE rolname = 'reader'")? == "1");
    sql.run("CREATE EXTENSION amcheck; SELECT bt_index_check('item_pkey', true)")?;
    sql.run("UPDATE item SET t = t || '!'")?;
    Ok(())
}

fn import_equals_source(major: u32, initdb: &[&str], checksums: &str) -> Result<()> {
    let binaries = PgBinaries::find(major)?;
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut stock = stock(cluster, &binaries, initdb)?;
            let before = contents(&of_stock(&stock), &binaries)?;
            stock.stop()?;
            imported(cluster, &stock, &before, &binaries)?;
            let mut sql = connected(cluster)?;
            ensure!(sql.value("SHOW data_checksums")? == checksums);
            // Everything again, from storage alone, with checksums verified by PostgreSQL.
            program::done(cluster, &["compute", "kill"])?;
            let mut sql = connected(cluster)?;
            ensure!(sql.value("SELECT count(*) FROM item WHERE t LIKE '%!'")? == "18001");
            sql.run("SELECT bt_index_check('item_pkey', true)")?;
            drop(sql);
            // The source is as it was, and still a working cluster.
            stock.start()?;
            let source = contents(&of_stock(&stock), &binaries)?;
            ensure!(
                dump::difference(&source, &before).is_none(),
                "the source was changed"
            );
            stock.stop()
        },
    )
}

#[test]
fn a_stopped_cluster_without_checksums_is_imported() -> Result<()> {
    import_equals_source(15, &[], "off")
}

#[test]
fn a_stopped_cluster_with_checksums_is_imported() -> Result<()> {
    import_equals_source(15, &["--data-checksums"], "on")
}

#[test]
fn a_stopped_cluster_of_17_with_checksums_is_imported() -> Result<()> {
    let binaries = PgBinaries::find(17)?;
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut server = StockServer::init(
                binaries.clone(),
                &cluster.directory().join("stock"),
                &["--data-checksums", "--wal-segsize=4"],
                &[],
            )?;
            server.start()?;
            server.psql(
                "postgres",
                "CREATE TABLE item AS SELECT n, md5(n::text) AS t FROM generate_series(1, 50000) n",
            )?;
            let before = dump::database(&of_stock(&server), &binaries, "postgres")?;
            server.stop()?;
            let ended = to_end(&mut import_command(cluster, &server.data_dir())?)?;
            ensure!(ended.status.success(), "{ended:?}");
            cluster.up()?;
            let after = dump::database(&Address::local(cluster.port()), &binaries, "postgres")?;
            ensure!(
                dump::difference(&after, &before).is_none(),
                "what was imported differs"
            );
            let mut sql = connected(cluster)?;
            ensure!(sql.value("SHOW data_checksums")? == "on");
            ensure!(sql.value("SHOW wal_segment_size")? == "4MB");
            sql.run("UPDATE item SET t = t || '!'")?;
            program::done(cluster, &["compute", "kill"])?;
            ensure!(
                connected(cluster)?.value("SELECT count(*) FROM item WHERE t LIKE '%!'")?
                    == "50000"
            );
            Ok(())
        },
    )
}

#[test]
fn a_running_cluster_is_refused_and_goes_on() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut stock = stock(cluster, &binaries, &[])?;
            let before = contents(&of_stock(&stock), &binaries)?;
            to_end(&mut import_command(cluster, &stock.data_dir())?)?.refused(
                &["is running", &stock.data_dir().display().to_string()],
                &["pg_ctl stop"],
            )?;
            nothing_made(cluster)?;
            ensure!(stock.psql("postgres", "SELECT count(*) FROM item")? == "18000");
            stock.stop()?;
            imported(cluster, &stock, &before, &binaries)
        },
    )
}

#[test]
fn an_unclean_cluster_is_refused_with_the_remedy() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut stock = stock(cluster, &binaries, &[])?;
            let before = contents(&of_stock(&stock), &binaries)?;
            stock.crash()?;
            to_end(&mut import_command(cluster, &stock.data_dir())?)?.refused(
                &[
                    "not shut down cleanly",
                    &stock.data_dir().display().to_string(),
                ],
                &["pg_ctl start", "pg_ctl stop"],
            )?;
            nothing_made(cluster)?;
            // The remedy works.
            stock.start()?;
            stock.stop()?;
            imported(cluster, &stock, &before, &binaries)
        },
    )
}

#[test]
fn what_is_no_cluster_is_refused() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    let cluster = Cluster::prepare(ClusterOptions::new(binaries.directory()))?;
    let empty = cluster.directory().join("empty");
    fs::create_dir(&empty)?;
    to_end(&mut import_command(&cluster, &empty)?)?.refused(
        &[&empty.join("PG_VERSION").display().to_string()],
        &["--from"],
    )?;
    nothing_made(&cluster)?;
    let newer = cluster.directory().join("newer");
    fs::create_dir(&newer)?;
    fs::write(newer.join("PG_VERSION"), "99\n")?;
    let ended = to_end(&mut import_command(&cluster, &newer)?)?;
    ensure!(
        ended.status.code() == Some(1) && ended.stderr.contains("99"),
        "{ended:?}"
    );
    nothing_made(&cluster)
}

#[test]
fn a_cluster_of_another_major_than_the_binaries_is_refused() -> Result<()> {
    let (source, other) = (PgBinaries::find(15)?, PgBinaries::find(17)?);
    let cluster = Cluster::prepare(ClusterOptions::new(other.directory()))?;
    let stock = StockServer::init(source, &cluster.directory().join("stock"), &[], &[])?;
    to_end(&mut import_command(&cluster, &stock.data_dir())?)?.refused(
        &["PostgreSQL 15", "PostgreSQL 17"],
        &["PostgreSQL 15", "--pg-bin"],
    )?;
    nothing_made(&cluster)
}

#[test]
fn a_page_with_a_wrong_checksum_is_refused_and_named() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    let cluster = Cluster::prepare(ClusterOptions::new(binaries.directory()))?;
    let mut stock = stock(&cluster, &binaries, &["--data-checksums"])?;
    let file = stock.psql("postgres", "SELECT pg_relation_filepath('item')")?;
    stock.stop()?;
    let path = stock.data_dir().join(&file);
    let flipped = strandline_tests::segment::flip(&path, 3 * 8192 + 4000)?;
    let ended = to_end(&mut import_command(&cluster, &stock.data_dir())?)?;
    ended.refused(
        &[&path.display().to_string(), "block 3", "checksum"],
        &["backup"],
    )?;
    nothing_made(&cluster)?;
    flipped.restore()?;
    let ended = to_end(&mut import_command(&cluster, &stock.data_dir())?)?;
    ensure!(ended.status.success(), "{ended:?}");
    Ok(())
}

/// Nothing of a cluster is in its directory.
fn nothing_made(cluster: &Cluster) -> Result<()> {
    for name in ["cluster.toml", "storage", "log-0", "config", ".preparing"] {
        ensure!(
            !cluster.data().join(name).exists(),
            "{name} was left behind"
        );
    }
    Ok(())
}

#[test]
fn ctrl_c_during_an_import_leaves_nothing_half_made() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            let mut stock = stock(cluster, &binaries, &[])?;
            // Large enough that there is a while in which to interrupt it.
            stock.psql("postgres", "CREATE TABLE large AS SELECT n, repeat(md5(n::text), 8) AS t FROM generate_series(1, 500000) n")?;
            let before = contents(&of_stock(&stock), &binaries)?;
            stock.stop()?;
            let preparing = cluster.data().join(".preparing");
            for delay in [0, 30, 150, 400] {
                let mut command = import_command(cluster, &stock.data_dir())?;
                let mut child = command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?;
                eventually(Duration::from_secs(20), "the import begins", || {
                    Ok(preparing.exists().then_some(()))
                })?;
                std::thread::sleep(Duration::from_millis(delay));
                process::signal(child.id(), libc::SIGINT);
                let status = program::wait(&mut child, Duration::from_secs(20))
                    .context("Ctrl-C does not end the import")?;
                ensure!(
                    status.code() == Some(1),
                    "interrupted after {delay} ms, it ended with {status}"
                );
                nothing_made(cluster).with_context(|| format!("interrupted after {delay} ms"))?;
            }
            // Killed: what is left is removed by the next start.
            let mut command = import_command(cluster, &stock.data_dir())?;
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            eventually(Duration::from_secs(20), "the import begins", || {
                Ok(preparing.join("storage").exists().then_some(()))
            })?;
            process::signal(child.id(), libc::SIGKILL);
            child.wait()?;
            ensure!(!cluster.data().join("cluster.toml").exists());
            imported(cluster, &stock, &before, &binaries)
        },
    )
}

#[test]
fn an_import_into_a_cluster_is_refused_and_the_cluster_stays() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    on(
        Cluster::start(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            connected(cluster)?.run("CREATE TABLE kept AS SELECT 1 AS one")?;
            let mut stock = StockServer::init(
                binaries.clone(),
                &cluster.directory().join("stock"),
                &[],
                &[],
            )?;
            stock.start()?;
            stock.stop()?;
            cluster.down()?;
            to_end(&mut import_command(cluster, &stock.data_dir())?)?
                .refused(&["holds a cluster already"], &["--data"])?;
            cluster.up()?;
            ensure!(connected(cluster)?.value("SELECT one FROM kept")? == "1");
            Ok(())
        },
    )
}
