//! Wrong usage and wrong surroundings: each is refused in one clear line with a remedy, and nothing is
//! lost: with the remedy, the cluster works and has all its data.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strandline_tests::program::{self, strandline, to_end};
use strandline_tests::wait::{connected, eventually, on};
use testkit::cluster::{Cluster, ClusterOptions, binary};
use testkit::process::{self, Role};
use testkit::{OrdinaryUser, PgBinaries, StockServer};

fn prepared(major: u32) -> Result<Cluster> {
    Cluster::prepare(ClusterOptions::new(PgBinaries::find(major)?.directory()))
}

/// A stopped cluster with something in it.
fn with_data(major: u32) -> Result<Cluster> {
    let mut cluster = Cluster::start(ClusterOptions::new(PgBinaries::find(major)?.directory()))?;
    connected(&cluster)?.run("CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) n")?;
    cluster.down()?;
    Ok(cluster)
}

/// Starts it and checks that what [`with_data`] made is there.
fn nothing_lost(cluster: &mut Cluster) -> Result<()> {
    cluster.up()?;
    ensure!(connected(cluster)?.value("SELECT sum(n) FROM kept")? == "500500");
    Ok(())
}

#[test]
fn wrong_usage_ends_with_exit_code_2() -> Result<()> {
    for arguments in [
        &[][..],
        &["sideways"],
        &["up", "--sideways"],
        &["up", "--log-stores", "2"],
        &["up", "--cache-size", "much"],
        &["up", "--read-timeout", "soon"],
        &["import"],
        &["compute"],
        &["compute", "sideways"],
        &["inspect", "wal"],
        &["inspect", "wal", "file", "--start", "here"],
        &["storage-node", "run"],
        &["status", "--data"],
    ] {
        let ended = strandline(arguments)?;
        ensure!(ended.status.code() == Some(2), "{arguments:?}: {ended:?}");
        ensure!(
            ended.stdout.is_empty() && ended.stderr.contains("--help"),
            "{arguments:?}: {ended:?}"
        );
    }
    let help = strandline(&["--help"])?;
    ensure!(
        help.status.success() && help.stdout.contains("Usage"),
        "{help:?}"
    );
    Ok(())
}

#[test]
fn an_address_that_is_none_is_refused() -> Result<()> {
    let cluster = prepared(15)?;
    for listen in ["5432", "localhost", "127.0.0.1:many", ":5432"] {
        program::about(&cluster, &["up", "--listen", listen])?
            .refused(&[listen, "address"], &["127.0.0.1:5432"])?;
    }
    ensure!(
        !cluster.data().exists(),
        "a refused command made a directory"
    );
    Ok(())
}

#[test]
fn a_taken_port_is_named_with_another_that_is_free() -> Result<()> {
    on(with_data(15)?, |cluster| {
        let taken = TcpListener::bind(("127.0.0.1", cluster.port()))?;
        let ended = to_end(&mut cluster.up_command()?)?;
        ended.refused(
            &[&format!("port {} on 127.0.0.1 is taken", cluster.port())],
            &["--listen 127.0.0.1:"],
        )?;
        drop(taken);
        nothing_lost(cluster)
    })
}

#[test]
fn another_major_is_refused_and_named() -> Result<()> {
    let other = PgBinaries::find(17)?;
    on(with_data(15)?, |cluster| {
        let own = cluster.pg_bin().to_owned();
        cluster.options_mut().pg_bin = other.directory().to_owned();
        to_end(&mut cluster.up_command()?)?.refused(
            &[
                "PostgreSQL 15",
                "PostgreSQL 17",
                &other.directory().display().to_string(),
            ],
            &["PostgreSQL 15", "--pg-bin"],
        )?;
        cluster.options_mut().pg_bin = own;
        nothing_lost(cluster)
    })
}

#[test]
fn a_missing_server_binary_is_named() -> Result<()> {
    on(with_data(15)?, |cluster| {
        let own = cluster.pg_bin().to_owned();
        let empty = cluster.directory().join("nothing-here");
        fs::create_dir(&empty)?;
        cluster.options_mut().pg_bin = empty.clone();
        let path = empty.join("postgres").display().to_string();
        to_end(&mut cluster.up_command()?)?
            .refused(&[&path], &["install PostgreSQL 15", "--pg-bin"])?;
        // Something that is no server.
        fs::copy("/bin/true", empty.join("postgres"))?;
        let ended = to_end(&mut cluster.up_command()?)?;
        ensure!(
            ended.status.code() == Some(1) && ended.stderr.contains(&path),
            "{ended:?}"
        );
        cluster.options_mut().pg_bin = own;
        nothing_lost(cluster)
    })
}

#[test]
fn a_missing_server_binary_is_named_before_anything_is_made() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::new("/nonexistent/bin".as_ref()))?;
    to_end(&mut cluster.up_command()?)?.refused(
        &["/nonexistent/bin/postgres"],
        &["install PostgreSQL 14 to 18", "--pg-bin"],
    )?;
    ensure!(!cluster.data().join("cluster.toml").exists());
    // The same directory serves once there is a server.
    cluster.options_mut().pg_bin = PgBinaries::find(15)?.directory().to_owned();
    on(cluster, |cluster| {
        cluster.up()?;
        ensure!(connected(cluster)?.value("SELECT 1")? == "1");
        Ok(())
    })
}

/// Started as root, everything runs as an ordinary user; as an ordinary user, `--user` is refused.
#[test]
fn nothing_runs_as_root() -> Result<()> {
    let root = fs::metadata("/proc/self")?.uid() == 0;
    let mut cluster = prepared(15)?;
    let mut bogus = cluster.up_command()?;
    let ended = to_end(bogus.args(["--user", "no-such-user-here"]))?;
    if root {
        ended.refused(&["no user no-such-user-here"], &["useradd"])?;
        let mut as_root = cluster.up_command()?;
        to_end(as_root.args(["--user", "root"]))?
            .refused(&["does not run as root"], &["--user"])?;
    } else {
        ended.refused(&["only root"], &["--user"])?;
    }
    cluster.up()?;
    on(cluster, |cluster| {
        let supervisor = cluster.supervisor().context("up runs")?;
        for (one, role) in process::family(supervisor) {
            // A backend may have ended meanwhile.
            let Ok(about) = fs::metadata(format!("/proc/{}", one.pid)) else {
                continue;
            };
            ensure!(about.uid() != 0, "{role:?} runs as root: {one:?}");
        }
        ensure!(!cluster.pids(Role::Postmaster).is_empty());
        for name in ["log-0", "storage", "compute", "config", "cluster.toml"] {
            ensure!(
                fs::metadata(cluster.data().join(name))?.uid() != 0,
                "{name} belongs to root"
            );
        }
        // Root asks for the status of what an ordinary user runs.
        ensure!(program::done(cluster, &["status"])?.contains("ready"));
        Ok(())
    })
}

#[test]
fn a_second_up_on_the_same_directory_is_refused_and_harmless() -> Result<()> {
    on(prepared(15)?, |cluster| {
        cluster.up()?;
        let mut sql = connected(cluster)?;
        sql.run("CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) n")?;
        let data = cluster.data().display().to_string();
        let parts = cluster.pids(Role::Postmaster);
        to_end(&mut cluster.up_command()?)?
            .refused(&["another strandline works on", &data], &["--data"])?;
        // With another port it is no different.
        let mut elsewhere = std::process::Command::new(binary()?);
        elsewhere
            .arg("up")
            .arg("--data")
            .arg(cluster.data())
            .args(["--listen", "127.0.0.1:0"]);
        to_end(&mut elsewhere)?
            .refused(&["another strandline works on"], &["strandline status"])?;
        ensure!(
            cluster.pids(Role::Postmaster) == parts,
            "the running server was disturbed"
        );
        ensure!(sql.value("SELECT sum(n) FROM kept")? == "500500");
        sql.run("INSERT INTO kept VALUES (0)")?;
        Ok(())
    })
}

#[test]
fn a_change_of_the_number_of_log_stores_is_refused() -> Result<()> {
    on(with_data(15)?, |cluster| {
        cluster.options_mut().log_stores = 3;
        to_end(&mut cluster.up_command()?)?
            .refused(&["has 1 log store", "3"], &["--log-stores"])?;
        cluster.options_mut().log_stores = 1;
        nothing_lost(cluster)
    })
}

#[test]
fn a_directory_with_other_things_in_it_is_left_alone() -> Result<()> {
    let cluster = prepared(15)?;
    fs::create_dir(cluster.data())?;
    let precious = cluster.data().join("precious.txt");
    fs::write(&precious, "mine")?;
    OrdinaryUser::current()?.own(&cluster.data())?;
    to_end(&mut cluster.up_command()?)?.refused(&["is not empty", "precious.txt"], &["--data"])?;
    ensure!(fs::read_to_string(&precious)? == "mine");

    let stock = cluster.directory().join("stock");
    let server = StockServer::init(PgBinaries::find(15)?, &stock, &[], &[])?;
    let pgdata = server.data_dir();
    let before = names(&pgdata)?;
    let mut up = std::process::Command::new(binary()?);
    up.arg("up")
        .arg("--data")
        .arg(&pgdata)
        .arg("--pg-bin")
        .arg(cluster.pg_bin());
    to_end(up.args(["--listen", "127.0.0.1:0"]))?.refused(
        &["is a stock PostgreSQL data directory"],
        &["strandline import --from"],
    )?;
    let mut after = names(&pgdata)?;
    // Directories of our own may lie there; nothing of PostgreSQL's is touched.
    after.retain(|name| !["strandline.lock", "run", "logs", "lib"].contains(&name.as_str()));
    ensure!(before == after, "{before:?} {after:?}");
    Ok(())
}

fn names(directory: &std::path::Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn a_cluster_description_that_is_damaged_is_named() -> Result<()> {
    on(with_data(15)?, |cluster| {
        let file = cluster.data().join("cluster.toml");
        let text = fs::read_to_string(&file)?;
        fs::write(&file, text.replace("format = 1", "format = 9"))?;
        let ended = to_end(&mut cluster.up_command()?)?;
        ensure!(ended.status.code() == Some(1), "{ended:?}");
        ensure!(
            ended.stderr.contains("cluster.toml has format 9"),
            "{ended:?}"
        );
        fs::write(&file, "rubbish")?;
        let ended = to_end(&mut cluster.up_command()?)?;
        ensure!(ended.status.code() == Some(1), "{ended:?}");
        ensure!(
            ended
                .stderr
                .contains("cluster.toml is not a cluster description"),
            "{ended:?}"
        );
        fs::write(&file, text)?;
        nothing_lost(cluster)
    })
}

#[test]
fn a_configuration_that_postgres_refuses_is_shown_and_can_be_corrected() -> Result<()> {
    on(with_data(15)?, |cluster| {
        let conf = cluster.data().join("config/postgresql.conf");
        let text = fs::read_to_string(&conf)?;
        fs::write(&conf, format!("{text}\nshared_bufers = '1MB'\n"))?;
        to_end(&mut cluster.up_command()?)?.refused(
            &["configuration file", "contains errors"],
            &["shared_bufers", "postgresql.conf"],
        )?;
        fs::write(&conf, text)?;
        nothing_lost(cluster)
    })
}

/// A storage node that is configured to stream from another cluster's log store.
#[test]
fn a_log_store_of_another_cluster_is_refused_by_the_storage_node() -> Result<()> {
    let mut ours = with_data(15)?;
    on(
        Cluster::start(ClusterOptions::new(PgBinaries::find(15)?.directory()))?,
        |theirs| {
            connected(theirs)?.run("CREATE TABLE others AS SELECT 1 AS one")?;
            let own = fs::read_to_string(ours.data().join("cluster.toml"))?;
            let identifier = own
                .lines()
                .find_map(|line| line.strip_prefix("system_identifier = "))
                .context("cluster.toml has a system identifier")?
                .trim_matches('"')
                .to_owned();
            let other = theirs.status()?["system_identifier"].to_string();
            let config = misdirected(&ours, theirs)?;
            let program = ours.directory().join("strandline");
            fs::copy(binary()?, &program)?;
            let log = ours.directory().join("misdirected.log");
            let mut command = OrdinaryUser::current()?.command(&program);
            let mut node = command
                .args(["storage-node", "run", "--config"])
                .arg(&config)
                .stderr(fs::File::create(&log)?)
                .stdout(std::process::Stdio::null())
                .spawn()?;
            let told = eventually(
                Duration::from_secs(30),
                "the storage node names both clusters",
                || {
                    let said = fs::read_to_string(&log)?;
                    Ok(said
                        .lines()
                        .any(|line| line.contains(&identifier) && line.contains(&other))
                        .then_some(()))
                },
            );
            // It may have ended by itself.
            let _ = node.kill();
            node.wait()?;
            told.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
            ensure!(connected(theirs)?.value("SELECT one FROM others")? == "1");
            nothing_lost(&mut ours)?;
            ours.down()
        },
    )
}

/// The configuration of `ours`' storage node with the log store of `theirs`.
fn misdirected(ours: &Cluster, theirs: &Cluster) -> Result<std::path::PathBuf> {
    let run = ours.run_dir();
    let text = fs::read_to_string(run.join("storage.toml"))?;
    let log = |cluster: &Cluster| cluster.run_dir().join("log-0").display().to_string();
    ensure!(text.contains(&log(ours)), "{text}");
    let config = run.join("misdirected.toml");
    fs::write(&config, text.replace(&log(ours), &log(theirs)))?;
    OrdinaryUser::current()?.own(&config)?;
    Ok(config)
}
