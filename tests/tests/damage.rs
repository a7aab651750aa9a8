//! Bytes on disk that are not what was written.
//!
//! **Claim.** Damage is noticed by a checksum and reported with the file and the remedy; what does not
//! need the damaged bytes goes on; with the bytes restored everything is as before. WAL that was
//! durable is never cut off; WAL that was never acknowledged is, with a note in the log.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use strandline_tests::journal::Journal;
use strandline_tests::program::{self, to_end};
use strandline_tests::segment::{flip, last_written, overwrite, segments};
use strandline_tests::wait::{connected, eventually, on};
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};

const PATIENCE: Duration = Duration::from_secs(60);

fn start() -> Result<Cluster> {
    let binaries = PgBinaries::find(15)?;
    Cluster::start(ClusterOptions {
        settings: vec!["autovacuum = off".to_owned()],
        ..ClusterOptions::new(binaries.directory())
    })
}

/// Makes the storage node write what it has in memory; the layer files that this made.
fn flush(cluster: &Cluster, before: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>> {
    let endpoint = rpc::Endpoint::Unix(cluster.run_dir().join("storage.ctl"));
    let mut client = rpc::Client::connect(&endpoint, PATIENCE)?;
    let (answer, _) = client.call::<Value, Value>(&json!({"request": "flush"}), &[])?;
    ensure!(answer["response"] == "status", "{answer}");
    Ok(layers(cluster)?.difference(before).cloned().collect())
}

fn layers(cluster: &Cluster) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(cluster.data().join("storage"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "sl") {
            found.insert(path);
        }
    }
    Ok(found)
}

/// Waits until the storage node has everything that is durable now.
fn caught_up(cluster: &Cluster) -> Result<()> {
    eventually(PATIENCE, "the storage node catches up", || {
        let status = cluster.status()?;
        let lsn = |pointer: &str| {
            status
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let applied = lsn("/storage/status/applied");
        Ok((applied.is_some() && applied == lsn("/log_stores/0/status/record_end")).then_some(()))
    })
}

const VICTIM: &str = "SELECT count(*), md5(string_agg(t, '' ORDER BY n)) FROM victim";
const OTHER: &str = "SELECT count(*), md5(string_agg(t, '' ORDER BY n)) FROM other";

#[test]
fn a_corrupt_byte_in_a_layer_file_spoils_only_reads_of_its_pages() -> Result<()> {
    on(start()?, |cluster| {
        let mut sql = connected(cluster)?;
        sql.run(
            "CREATE TABLE other AS SELECT n, md5(n::text) AS t FROM generate_series(1, 20000) n",
        )?;
        caught_up(cluster)?;
        flush(cluster, &BTreeSet::new())?;
        let before = layers(cluster)?;
        sql.run("CREATE TABLE victim AS SELECT n, repeat(md5(n::text), 8) AS t FROM generate_series(1, 40000) n")?;
        let (victim, other) = (sql.run(VICTIM)?, sql.run(OTHER)?);
        caught_up(cluster)?;
        let made = flush(cluster, &before)?;
        let layer = made
            .iter()
            .max_by_key(|path| fs::metadata(path).map_or(0, |about| about.len()));
        let layer = layer.context("a layer file was made")?.clone();
        let length = fs::metadata(&layer)?.len();
        // Nearly all of this file is the victim's rows, so its middle is too.
        let flipped = flip(&layer, length / 2)?;
        cluster.down()?;
        cluster.up()?;

        let mut sql = connected(cluster)?;
        let error = format!(
            "{:#}",
            sql.run(VICTIM).err().context("a damaged page was read")?
        );
        ensure!(error.contains("could not read block"), "{error}");
        let name = layer
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for part in ["storage", "postgres"] {
            let log = cluster.log(part)?;
            ensure!(
                log.lines().any(|line| line.contains(&name)
                    && line.contains("corrupt")
                    && line.contains("restore")),
                "the log of {part} does not name {name} and the remedy:\n{log}"
            );
        }
        ensure!(sql.run(OTHER)? == other, "other data cannot be read");
        sql.run("CREATE TABLE later AS SELECT 1 AS one")?;

        flipped.restore()?;
        ensure!(
            connected(cluster)?.run(VICTIM)? == victim,
            "with the byte restored, it reads differently"
        );
        program::done(cluster, &["compute", "kill"])?;
        let mut sql = connected(cluster)?;
        ensure!(sql.run(VICTIM)? == victim && sql.run(OTHER)? == other);
        ensure!(sql.value("SELECT one FROM later")? == "1");
        Ok(())
    })
}

#[test]
fn a_corrupt_manifest_stops_the_storage_node_and_nothing_is_deleted() -> Result<()> {
    on(start()?, |cluster| {
        connected(cluster)?.run(
            "CREATE TABLE other AS SELECT n, md5(n::text) AS t FROM generate_series(1, 20000) n",
        )?;
        let other = connected(cluster)?.run(OTHER)?;
        cluster.down()?;
        let before = layers(cluster)?;
        let manifest = cluster.data().join("storage/manifest");
        let flipped = flip(&manifest, fs::metadata(&manifest)?.len() / 2)?;
        to_end(&mut cluster.up_command()?)?.refused(
            &["storage", &manifest.display().to_string(), "corrupt"],
            &["restore the file named manifest"],
        )?;
        ensure!(layers(cluster)? == before, "layer files were removed");
        flipped.restore()?;
        cluster.up()?;
        ensure!(connected(cluster)?.run(OTHER)? == other);
        Ok(())
    })
}

/// A stopped cluster with some segments of WAL, and what a query says of them.
fn with_wal() -> Result<(Cluster, String)> {
    let mut cluster = start()?;
    let mut sql = connected(&cluster)?;
    sql.run(
        "CREATE TABLE rows AS SELECT n, md5(n::text) AS t FROM generate_series(1, 300000) n;
         CREATE INDEX ON rows (t)",
    )?;
    let sum = sql.value("SELECT md5(string_agg(t, '' ORDER BY n)) FROM rows")?;
    drop(sql);
    cluster.down()?;
    Ok((cluster, sum))
}

fn same_rows(cluster: &mut Cluster, sum: &str) -> Result<()> {
    cluster.up()?;
    ensure!(
        connected(cluster)?.value("SELECT md5(string_agg(t, '' ORDER BY n)) FROM rows")? == sum
    );
    Ok(())
}

/// Spoils a byte of durable WAL and checks that it is refused, that nothing is cut off, and that it
/// heals.
fn refused_until_restored(cluster: &mut Cluster, path: &PathBuf, at: u64, sum: &str) -> Result<()> {
    let before = segments(&cluster.data().join("log-0"))?;
    let flipped = flip(path, at)?;
    let spoiled = fs::read(path)?;
    to_end(&mut cluster.up_command()?)?.refused(
        &[
            "log-0",
            &path.display().to_string(),
            "damaged at 0/",
            "was durable",
        ],
        &[
            "put the file of the same name from another log store",
            "backup",
        ],
    )?;
    ensure!(
        fs::read(path)? == spoiled,
        "the damaged segment was changed"
    );
    ensure!(
        segments(&cluster.data().join("log-0"))? == before,
        "segments were removed or made"
    );
    flipped.restore()?;
    same_rows(cluster, sum)
}

#[test]
fn a_corrupt_byte_at_the_end_of_durable_wal_is_refused() -> Result<()> {
    let (cluster, sum) = with_wal()?;
    on(cluster, |cluster| {
        // Within the last record, the shutdown checkpoint.
        let (path, last) = last_written(&cluster.data().join("log-0"))?;
        refused_until_restored(cluster, &path, last.saturating_sub(20), &sum)
    })
}

#[test]
fn a_corrupt_byte_in_the_middle_of_durable_wal_is_refused() -> Result<()> {
    let (cluster, sum) = with_wal()?;
    on(cluster, |cluster| {
        let directory = cluster.data().join("log-0");
        let (last, _) = last_written(&directory)?;
        let all = segments(&directory)?;
        let at = all
            .iter()
            .position(|path| *path == last)
            .context("it is among them")?;
        let before = all
            .get(at.wrapping_sub(1))
            .context("there is a segment before the last")?;
        refused_until_restored(cluster, before, 8 << 20, &sum)
    })
}

#[test]
fn a_torn_tail_that_was_never_acknowledged_is_cut_off_and_reported() -> Result<()> {
    on(start()?, |cluster| {
        Journal::create(&mut connected(cluster)?)?;
        let journal = Journal::start(cluster.port(), 4, 0, 500);
        eventually(PATIENCE, "clients write", || {
            Ok((journal.count() > 200).then_some(()))
        })?;
        cluster.kill_everything();
        let acknowledged = journal.finish()?;
        // The beginning of a record that looks like one, whose end never came to the disk.
        let (path, last) = last_written(&cluster.data().join("log-0"))?;
        let bytes = fs::read(&path)?;
        let at = (last + 8) & !7;
        let from = usize::try_from(at)?.saturating_sub(4096);
        let fragment = bytes
            .get(from..from + 700)
            .context("there is WAL before the end")?;
        overwrite(&path, at, fragment)?;
        cluster.up()?;
        let log = cluster.log("log-0")?;
        ensure!(log.contains("torn tail"), "the cut is not reported:\n{log}");
        ensure!(acknowledged.len() > 200);
        acknowledged.check(&mut connected(cluster)?)?;
        // The log goes on over the place.
        let journal = Journal::start(cluster.port(), 4, 1_000_000, 500);
        eventually(PATIENCE, "clients write again", || {
            Ok((journal.count() > 200).then_some(()))
        })?;
        let mut all = journal.finish()?;
        all.extend(&acknowledged);
        program::done(cluster, &["compute", "kill"])?;
        all.check(&mut connected(cluster)?)
    })
}

#[test]
fn a_missing_segment_of_durable_wal_is_refused() -> Result<()> {
    let (cluster, sum) = with_wal()?;
    on(cluster, |cluster| {
        let directory = cluster.data().join("log-0");
        let (last, _) = last_written(&directory)?;
        let aside = cluster.directory().join("aside");
        fs::rename(&last, &aside)?;
        to_end(&mut cluster.up_command()?)?.refused(
            &["log-0", &last.display().to_string()],
            &["from another log store"],
        )?;
        fs::rename(&aside, &last)?;
        same_rows(cluster, &sum)
    })
}
