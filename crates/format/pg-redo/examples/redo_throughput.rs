//! How many records a core redoes: splits a WAL directory into mini-records, then rebuilds every page
//! from them.
//!
//! `redo_throughput BASE WAL`: BASE is a copy of a data directory stopped cleanly, WAL the `pg_wal`
//! directory of the same cluster after a load that creates, truncates and drops no relation
//! (pgbench without `-i`, say). Prints records per second of both halves and of the whole.

#[path = "../tests/equals_postgres/files.rs"]
mod files;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, error, fs};

use pg_page::control::CONTROL_FILE_PATH;
use pg_page::{ControlFile, Page};
use pg_redo::{Facts, RedoContext, page_changes, redo};
use pg_types::{BLCKSZ, Lsn, PageKey};
use pg_wal::{MiniRecord, Record, StreamError, WalStream};

use files::DataFiles;

type Result<T> = std::result::Result<T, Box<dyn error::Error>>;

/// The mini-records of each page, in one buffer.
#[derive(Default)]
struct Chains {
    bytes: Vec<u8>,
    /// End of the record, and where its mini-record is.
    pages: HashMap<PageKey, Vec<(Lsn, std::ops::Range<usize>)>>,
    records: u64,
    changes: u64,
}

fn main() -> Result<()> {
    let mut args = env::args_os().skip(1);
    let (Some(base), Some(wal)) = (args.next(), args.next()) else {
        return Err("usage: redo_throughput BASE WAL".into());
    };
    let base = DataFiles::new(Path::new(&base));
    let control = ControlFile::decode(&fs::read(base.root().join(CONTROL_FILE_PATH))?)?;
    let facts = Facts {
        major: control.major(),
        hint_lsn: control.data_checksums() || control.parameters().wal_log_hints,
        track_commit_timestamp: control.parameters().track_commit_timestamp,
    };
    let segments = read_segments(&control, Path::new(&wal))?;
    let began = Instant::now();
    let chains = split(&control, &segments, &facts)?;
    let splitting = began.elapsed();

    let mut pages: Vec<(PageKey, Box<Page>)> = chains
        .pages
        .keys()
        .map(|key| {
            (
                *key,
                base.page(*key).unwrap_or_else(|| Box::new([0; BLCKSZ])),
            )
        })
        .collect();
    pages.sort_unstable_by_key(|(key, _)| *key);
    let context = RedoContext { major: facts.major };
    let began = Instant::now();
    for (key, page) in &mut pages {
        for (end, range) in chains.pages.get(key).into_iter().flatten() {
            let mini = MiniRecord::decode(chains.bytes.get(range.clone()).unwrap_or_default())?;
            let record = mini.decode_record(facts.major)?;
            redo(page, *key, &mini, &record, *end, &context)?;
        }
    }
    let redoing = began.elapsed();

    let bytes: usize = segments.iter().map(|(_, bytes)| bytes.len()).sum();
    println!(
        "{} records ({} MiB of WAL), {} changes of {} pages",
        chains.records,
        bytes >> 20,
        chains.changes,
        pages.len()
    );
    report("split into mini-records", chains.records, splitting);
    report("redo of mini-records", chains.changes, redoing);
    report("both, in WAL records", chains.records, splitting + redoing);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate for reading")]
fn report(what: &str, count: u64, took: Duration) {
    let rate = count as f64 / took.as_secs_f64();
    println!(
        "{what:<26} {:>8.1} ms  {:>6.2} M/s",
        took.as_secs_f64() * 1e3,
        rate / 1e6
    );
}

fn read_segments(control: &ControlFile, wal: &Path) -> Result<Vec<(Lsn, Vec<u8>)>> {
    let size = control.segment_size();
    let mut segments = Vec::new();
    for number in size.segment_of(control.checkpoint_lsn()).. {
        let name = size.file_name(control.checkpoint().timeline, number);
        let Ok(bytes) = fs::read(wal.join(name)) else {
            break;
        };
        segments.push((size.start_of(number), bytes));
    }
    Ok(segments)
}

fn split(control: &ControlFile, segments: &[(Lsn, Vec<u8>)], facts: &Facts) -> Result<Chains> {
    let start = control.checkpoint_lsn();
    let mut stream = WalStream::new(start, facts.major, control.segment_size());
    let mut chains = Chains::default();
    for (at, bytes) in segments {
        let from = start.max(*at);
        let skip = usize::try_from(from.since(*at))?;
        stream.push(from, bytes.get(skip..).unwrap_or_default())?;
        loop {
            match stream.next_record() {
                Ok(Some(record)) => {
                    let decoded = Record::decode(record.bytes, facts.major)?;
                    keep(&mut chains, &decoded, record.end, facts)?;
                }
                Ok(None) => break,
                Err(StreamError::EndOfWal { .. }) => return Ok(chains),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(chains)
}

fn keep(chains: &mut Chains, record: &Record<'_>, end: Lsn, facts: &Facts) -> Result<()> {
    let Chains {
        bytes,
        pages,
        records,
        changes,
    } = chains;
    *records += 1;
    page_changes(record, facts, &mut |change| {
        *changes += 1;
        let from = bytes.len();
        let (initializes, keep_image) = (change.initializes, change.keep_image);
        MiniRecord::encode_from(
            record,
            change.target,
            initializes,
            facts.hint_lsn,
            keep_image,
            bytes,
        );
        pages
            .entry(change.key)
            .or_default()
            .push((end, from..bytes.len()));
    })?;
    Ok(())
}
