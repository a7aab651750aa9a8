//! How fast native redo is: the whole of a pgbench WAL, decoded, split into mini-records and applied to
//! its pages on one core, against stock PostgreSQL's own recovery of the same WAL.
//!
//! The rate is of the thread's processor time with the pages in memory. What is compared with stock
//! recovery includes reading the pages, as recovery does: processor time, and elapsed time, in which
//! whatever else runs on the machine shows.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use page_store::BuildPageKeyHasher;
use pg_redo::{Facts, PageChange, RedoContext, page_changes, redo};
use pg_types::{BLCKSZ, Lsn, PageKey, PgMajor, RELSEG_BLOCKS, RelFileLocator};
use pg_wal::{MiniRecord, Record, StreamError, WalStream};
use testkit::PgBinaries;

use crate::Effort;
use crate::pgbench;
use crate::processor_time::ProcessorTime;
use crate::report::{Report, Series};
use crate::wal_load::{RecordedWal, WalLoad};

/// What one replay did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replayed {
    /// WAL records read.
    pub records: u64,
    /// Page changes applied.
    pub changes: u64,
    /// Bytes of WAL read.
    pub bytes: u64,
}

/// Runs the bench.
///
/// # Errors
/// When a server fails, or redo disagrees with a record.
pub fn run(binaries: &PgBinaries, effort: &Effort) -> Result<Report> {
    let scratch = tempfile::Builder::new()
        .prefix("strandline-redo-")
        .tempdir()?;
    testkit::OrdinaryUser::current()?.own(scratch.path())?;
    eprintln!("  writing {} transactions of WAL", effort.wal_transactions);
    let mut load = WalLoad::make(
        binaries,
        scratch.path(),
        effort.scale,
        effort.wal_transactions,
    )?;
    let mut report = Report::new(
        "redo",
        "decoding a pgbench WAL and applying it to its pages on one core, and stock recovery of the same WAL",
        &load.version,
    );
    let segments = load.wal.segments()?;
    let touched = touched(&load.wal, &segments)?;
    let mut ours = Series::new("redo/strandline", "s");
    let mut stock = Series::new("redo/stock recovery", "s");
    let mut ours_busy = Series::new("redo, processor time/strandline", "s");
    let mut stock_busy = Series::new("redo, processor time/stock recovery", "s");
    let mut rate = Series::new("redo rate/strandline", "million records/s");
    let crashed = scratch.path().join("crashed");
    copy(&load.crashed.data_dir(), &crashed)?;
    let mut last = Replayed::default();
    for _ in 0..effort.rounds {
        let begun = Instant::now();
        let all = ProcessorTime::of_this_thread()?;
        let mut pages = Pages::read(&load.wal, &touched)?;
        let processor = ProcessorTime::of_this_thread()?;
        last = replay(&load.wal, &segments, &mut pages)?;
        let busy = processor.elapsed()?.as_secs_f64();
        let seconds = begun.elapsed().as_secs_f64();
        ours_busy.values.push(all.elapsed()?.as_secs_f64());
        drop(pages);
        ours.values.push(seconds);
        rate.values.push(last.records as f64 / 1e6 / busy);
        eprintln!(
            "  native: {} records in {busy:.2} s of the processor, {seconds:.2} s with reading {} pages",
            last.records,
            touched.len()
        );

        fs::remove_dir_all(load.crashed.data_dir())?;
        copy(&crashed, &load.crashed.data_dir())?;
        let (busy, seconds) = recover(&mut load)?;
        stock.values.push(seconds);
        stock_busy.values.push(busy);
        eprintln!("  stock recovery: {busy:.2} s of the processor, {seconds:.2} s");
    }
    report.finding("records", last.records as f64, "");
    report.finding("page changes", last.changes as f64, "");
    report.finding("pages", touched.len() as f64, "");
    report.finding("WAL", last.bytes as f64 / 1e6, "MB");
    report.at_least("native redo", rate.median(), "million records/s", 1.0);
    report.at_least(
        "stock recovery / native redo, elapsed time",
        stock.median() / ours.median(),
        "",
        1.0,
    );
    report.at_least(
        "stock recovery / native redo, processor time",
        stock_busy.median() / ours_busy.median(),
        "",
        1.0,
    );
    report
        .series
        .extend([ours, stock, ours_busy, stock_busy, rate]);
    Ok(report)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    pgbench::run(std::process::Command::new("cp").arg("-a").arg(from).arg(to))?;
    Ok(())
}

/// Starts the crashed server and reads from its log how long redo took: seconds of processor time, and
/// elapsed.
fn recover(load: &mut WalLoad) -> Result<(f64, f64)> {
    let log = load.crashed.socket_dir().join("server.log");
    let before = fs::read_to_string(&log).unwrap_or_default().len();
    load.crashed.start()?;
    load.crashed.crash()?;
    let text = fs::read_to_string(&log)?;
    let fresh = text.get(before..).unwrap_or_default();
    // "redo done at 0/5A2B9F8 system usage: CPU: user: 0.51 s, system: 0.07 s, elapsed: 0.60 s"
    fresh
        .lines()
        .find(|line| line.contains("redo done at"))
        .and_then(|line| {
            let seconds = |name: &str| -> Option<f64> {
                line.split_once(name)?.1.split(' ').next()?.parse().ok()
            };
            Some((
                seconds("user: ")? + seconds("system: ")?,
                seconds("elapsed: ")?,
            ))
        })
        .with_context(|| format!("no duration of redo in the server's log:\n{fresh}"))
}

/// Calls `each` with every record of the WAL, its end and what it changes.
fn for_each_record(
    wal: &RecordedWal,
    segments: &[(Lsn, Vec<u8>)],
    mut each: impl FnMut(&Record<'_>, Lsn, &[PageChange]) -> Result<()>,
) -> Result<u64> {
    let facts = Facts {
        major: wal.major,
        hint_lsn: false,
        track_commit_timestamp: false,
    };
    let mut stream = WalStream::new(wal.begin, wal.major, wal.segment_size);
    let mut changes: Vec<PageChange> = Vec::new();
    for (at, bytes) in segments {
        stream.push(*at, bytes)?;
        loop {
            let streamed = match stream.next_record() {
                Ok(Some(streamed)) => streamed,
                Ok(None) => break,
                // The log of a crashed server ends somewhere in its last segment.
                Err(StreamError::EndOfWal { at, .. }) => return Ok(at.since(wal.begin)),
                Err(error) => return Err(error.into()),
            };
            let record = Record::decode(streamed.bytes, wal.major)?;
            changes.clear();
            page_changes(&record, &facts, &mut |change| changes.push(change))?;
            each(&record, streamed.end, &changes)?;
        }
    }
    bail!("the WAL does not end in its last segment")
}

/// The pages that the WAL changes.
///
/// # Errors
/// When a record is not understood.
pub fn touched(wal: &RecordedWal, segments: &[(Lsn, Vec<u8>)]) -> Result<HashSet<PageKey>> {
    let mut touched = HashSet::new();
    for_each_record(wal, segments, |_, _, changes| {
        touched.extend(changes.iter().map(|change| change.key));
        Ok(())
    })?;
    Ok(touched)
}

/// Applies all of the WAL to `pages`.
///
/// # Errors
/// When a record is not understood or does not fit its page.
pub fn replay(
    wal: &RecordedWal,
    segments: &[(Lsn, Vec<u8>)],
    pages: &mut Pages,
) -> Result<Replayed> {
    let mut done = Replayed::default();
    let mut encoded = Vec::new();
    let context = RedoContext { major: wal.major };
    done.bytes = for_each_record(wal, segments, |record, end, changes| {
        done.records += 1;
        for change in changes {
            encoded.clear();
            MiniRecord::encode_from(
                record,
                change.target,
                change.initializes,
                false,
                change.keep_image,
                &mut encoded,
            );
            let mini = MiniRecord::decode(&encoded)?;
            let slim = mini.decode_record(wal.major)?;
            let page = pages.get(change.key)?;
            redo(page, change.key, &mini, &slim, end, &context)?;
            done.changes += 1;
        }
        Ok(())
    })?;
    Ok(done)
}

/// Pages in memory.
#[derive(Debug)]
pub struct Pages {
    bytes: Vec<[u8; BLCKSZ]>,
    places: HashMap<PageKey, usize, BuildPageKeyHasher>,
}

impl Pages {
    /// Reads the pages `keys` of a data directory as they were before the WAL.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(wal: &RecordedWal, keys: &HashSet<PageKey>) -> Result<Pages> {
        let mut pages = Pages {
            bytes: vec![[0; BLCKSZ]; keys.len()],
            places: HashMap::default(),
        };
        let mut files = Files {
            base: &wal.base,
            major: wal.major,
            open: HashMap::new(),
        };
        for ((number, key), page) in keys.iter().enumerate().zip(&mut pages.bytes) {
            files.read(*key, page)?;
            pages.places.insert(*key, number);
        }
        Ok(pages)
    }

    fn get(&mut self, key: PageKey) -> Result<&mut [u8; BLCKSZ]> {
        self.places
            .get(&key)
            .and_then(|number| self.bytes.get_mut(*number))
            .with_context(|| format!("{key} was not read"))
    }
}

/// Files of a data directory.
struct Files<'a> {
    base: &'a Path,
    major: PgMajor,
    open: HashMap<PathBuf, Option<File>>,
}

impl Files<'_> {
    /// Reads a page; what is behind the end of its file stays as it is.
    fn read(&mut self, key: PageKey, page: &mut [u8; BLCKSZ]) -> Result<()> {
        let (path, block) = self.place(key)?;
        let file = self
            .open
            .entry(path)
            .or_insert_with_key(|path| File::open(path).ok());
        if let Some(file) = file {
            let mut at = 0;
            while at < BLCKSZ {
                let offset = u64::from(block) * BLCKSZ as u64 + at as u64;
                match file.read_at(page.get_mut(at..).unwrap_or_default(), offset)? {
                    0 => break,
                    read => at += read,
                }
            }
        }
        Ok(())
    }

    fn place(&self, key: PageKey) -> Result<(PathBuf, u32)> {
        if let Some(slru) = key.as_slru() {
            let (name, offset) = pg_page::slru::page_location(key.block);
            let block = u32::try_from(offset / BLCKSZ as u64)?;
            return Ok((self.base.join(slru.directory()).join(name), block));
        }
        let Some(fork) = key.as_relation() else {
            bail!("{key} is of no relation")
        };
        let RelFileLocator { spc, db, rel } = fork.locator;
        let directory = match spc {
            RelFileLocator::GLOBAL_TABLESPACE => "global".to_owned(),
            RelFileLocator::DEFAULT_TABLESPACE => format!("base/{db}"),
            other => format!(
                "pg_tblspc/{other}/{}/{db}",
                self.major.tablespace_directory()
            ),
        };
        let segment = match key.block / RELSEG_BLOCKS {
            0 => String::new(),
            number => format!(".{number}"),
        };
        let name = format!("{directory}/{rel}{}{segment}", fork.fork.suffix());
        Ok((self.base.join(name), key.block % RELSEG_BLOCKS))
    }
}
