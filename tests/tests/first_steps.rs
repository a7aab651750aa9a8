//! What the README's reader does first.

use std::fs;

use anyhow::{Context, Result, ensure};
use strandline_tests::dump::{self, Address};
use strandline_tests::wait::on;
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};

fn first_steps(major: u32) -> Result<()> {
    let binaries = PgBinaries::find(major)?;
    let version =
        dump::output(std::process::Command::new(binaries.program("postgres")?).arg("-V"))?;
    let version = version
        .trim()
        .strip_prefix("postgres (PostgreSQL) ")
        .context("postgres -V")?
        .to_owned();
    on(
        Cluster::prepare(ClusterOptions::new(binaries.directory()))?,
        |cluster| {
            ensure!(!cluster.data().exists(), "the directory is new");
            cluster.up()?;
            let said = cluster.up_log()?;
            ensure!(
                said.contains("psql postgresql://postgres@127.0.0.1:"),
                "how to connect is not said:\n{said}"
            );

            // psql, with the connection string that `up` printed.
            let address = Address::local(cluster.port());
            let url = format!(
                "postgresql://postgres@127.0.0.1:{}/postgres",
                cluster.port()
            );
            let mut psql = std::process::Command::new(binaries.program("psql")?);
            let answer = dump::output(
                psql.args(["-X", "-A", "-t", "-c", "SELECT version()"])
                    .arg(&url),
            )?;
            ensure!(
                answer.starts_with(&format!("PostgreSQL {version} on ")),
                "version() is not that of the unmodified server {version}: {answer}"
            );
            // Through the Unix socket, as `up` also says.
            let socket = Address {
                host: cluster.run_dir().display().to_string(),
                port: cluster.port(),
            };
            let mut psql = socket.client(&binaries, "psql", "postgres")?;
            ensure!(
                dump::output(psql.args(["-X", "-A", "-t", "-c", "SELECT 6 * 7"]))?.trim() == "42"
            );

            let mut load = address.client(&binaries, "pgbench", "postgres")?;
            dump::output(load.args(["-i", "-s", "3"]))?;
            let mut run = address.client(&binaries, "pgbench", "postgres")?;
            let report = dump::output(run.args(["-c", "4", "-T", "3"]))?;
            ensure!(report.contains("tps = "), "{report}");
            ensure!(
                report.contains("number of failed transactions: 0 "),
                "{report}"
            );
            let before = dump::database(&address, &binaries, "postgres")?;

            // Ctrl-C, and again.
            cluster.down()?;
            ensure!(cluster.data().join("cluster.toml").is_file());
            cluster.up()?;
            let after = dump::database(&address, &binaries, "postgres")?;
            if let Some(difference) = dump::difference(&after, &before) {
                anyhow::bail!("after Ctrl-C and up: {difference}");
            }
            let leftovers: Vec<_> = fs::read_dir(cluster.data())?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| name == ".preparing")
                .collect();
            ensure!(leftovers.is_empty(), "{leftovers:?}");
            Ok(())
        },
    )
}

#[test]
fn up_psql_pgbench_ctrl_c_up_with_15() -> Result<()> {
    first_steps(15)
}

#[test]
fn up_psql_pgbench_ctrl_c_up_with_17() -> Result<()> {
    first_steps(17)
}

/// `strandline up` with nothing said about the directory of the server's programs.
#[test]
fn up_finds_an_installed_server_by_itself() -> Result<()> {
    let binaries = PgBinaries::find(15)?;
    let cluster = Cluster::prepare(ClusterOptions::new(binaries.directory()))?;
    let mut child = std::process::Command::new(testkit::cluster::binary()?)
        .arg("up")
        .arg("--data")
        .arg(cluster.data())
        .args(["--listen", "127.0.0.1:0"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take().context("stdout is piped")?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    let url = lines.next().context("up printed nothing")?;
    let answer = url.context("stdout").and_then(|url| {
        let mut psql = std::process::Command::new(binaries.program("psql")?);
        dump::output(
            psql.args(["-X", "-A", "-t", "-c", "SHOW server_version_num"])
                .arg(&url),
        )
    });
    testkit::process::signal(child.id(), libc::SIGINT);
    let ended = strandline_tests::program::wait(&mut child, std::time::Duration::from_secs(60));
    if ended.is_err() {
        for (one, _) in testkit::process::family(child.id()) {
            testkit::process::signal(one.pid, libc::SIGKILL);
        }
        child.wait()?;
    }
    ensure!(answer?.trim().parse::<u32>()? >= 140_000);
    ensure!(ended?.success(), "Ctrl-C ends `up` with exit code 0");
    Ok(())
}
