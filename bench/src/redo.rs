//! How fast native redo is: the whole of a pgbench WAL, decoded, split into mini-records and applied to
//! its pages on one core, against stock PostgreSQL's own recovery of the same WAL.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use pg_redo::{Facts, PageChange, RedoContext, page_changes, redo};
use pg_types::{BLCKSZ, Lsn, PageKey, PgMajor, RELSEG_BLOCKS, RelFileLocator};
use pg_wal::{MiniRecord, Record, WalStream};
use testkit::PgBinaries;

use crate::Effort;
use crate::pgbench;
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
    let mut ours = Series::new("redo/strandline", "s");
    let mut stock = Series::new("redo/stock recovery", "s");
    let mut rate = Series::new("redo rate/strandline", "million records/s");
    let crashed = scratch.path().join("crashed");
    copy(&load.crashed.data_dir(), &crashed)?;
    let mut last = Replayed::default();
    for _ in 0..effort.rounds {
        let begun = Instant::now();
        last = replay(&load.wal, &segments)?;
        let seconds = begun.elapsed().as_secs_f64();
        ours.values.push(seconds);
        rate.values.push(last.records as f64 / 1e6 / seconds);
        eprintln!("  native: {} records in {seconds:.2} s", last.records);

        fs::remove_dir_all(load.crashed.data_dir())?;
        copy(&crashed, &load.crashed.data_dir())?;
        stock.values.push(recover(&mut load)?);
        eprintln!(
            "  stock recovery: {:.2} s",
            stock.values.last().copied().unwrap_or_default()
        );
    }
    report.finding("records", last.records as f64, "");
    report.finding("page changes", last.changes as f64, "");
    report.finding("WAL", last.bytes as f64 / 1e6, "MB");
    report.at_least("native redo", rate.median(), "million records/s", 1.0);
    report.at_least(
        "stock recovery / native redo",
        stock.median() / ours.median(),
        "",
        1.0,
    );
    report.series.extend([ours, stock, rate]);
    Ok(report)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    pgbench::run(std::process::Command::new("cp").arg("-a").arg(from).arg(to))?;
    Ok(())
}

/// Starts the crashed server and reads from its log how long redo took.
fn recover(load: &mut WalLoad) -> Result<f64> {
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
            line.rsplit_once("elapsed: ")?
                .1
                .strip_suffix(" s")?
                .parse()
                .ok()
        })
        .with_context(|| format!("no duration of redo in the server's log:\n{fresh}"))
}

/// Applies all of the load's WAL to pages that are read from the base directory when first touched.
///
/// # Errors
/// When a record is not understood or does not fit its page.
pub fn replay(wal: &RecordedWal, segments: &[(Lsn, Vec<u8>)]) -> Result<Replayed> {
    let facts = Facts {
        major: wal.major,
        hint_lsn: false,
        track_commit_timestamp: false,
    };
    let mut stream = WalStream::new(wal.begin, wal.major, wal.segment_size);
    let mut pages = Pages::new(&wal.base, wal.major);
    let mut done = Replayed::default();
    let mut changes: Vec<PageChange> = Vec::new();
    let mut encoded = Vec::new();
    for (at, bytes) in segments {
        stream.push(*at, bytes)?;
        loop {
            let streamed = match stream.next_record() {
                Ok(Some(streamed)) => streamed,
                Ok(None) => break,
                // The log of a crashed server ends somewhere in its last segment.
                Err(_) => return Ok(done),
            };
            let record = Record::decode(streamed.bytes, wal.major)?;
            done.records += 1;
            done.bytes += streamed.end.since(streamed.start);
            changes.clear();
            page_changes(&record, &facts, &mut |change| changes.push(change))?;
            for change in &changes {
                encoded.clear();
                MiniRecord::encode_from(
                    &record,
                    change.target,
                    change.initializes,
                    false,
                    change.keep_image,
                    &mut encoded,
                );
                let mini = MiniRecord::decode(&encoded)?;
                let slim = mini.decode_record(wal.major)?;
                let context = RedoContext { major: wal.major };
                redo(
                    pages.get(change.key)?,
                    change.key,
                    &mini,
                    &slim,
                    streamed.end,
                    &context,
                )?;
                done.changes += 1;
            }
        }
    }
    Ok(done)
}

/// Pages in memory, read from a data directory when first asked for.
struct Pages<'a> {
    base: &'a Path,
    major: PgMajor,
    pages: HashMap<PageKey, Box<[u8; BLCKSZ]>>,
    files: HashMap<PathBuf, Option<File>>,
}

impl<'a> Pages<'a> {
    fn new(base: &'a Path, major: PgMajor) -> Pages<'a> {
        Pages {
            base,
            major,
            pages: HashMap::new(),
            files: HashMap::new(),
        }
    }

    fn get(&mut self, key: PageKey) -> Result<&mut [u8; BLCKSZ]> {
        if !self.pages.contains_key(&key) {
            let page = self.read(key)?;
            self.pages.insert(key, page);
        }
        self.pages
            .get_mut(&key)
            .map(|page| &mut **page)
            .context("just inserted")
    }

    fn read(&mut self, key: PageKey) -> Result<Box<[u8; BLCKSZ]>> {
        let mut page = Box::new([0; BLCKSZ]);
        let (path, block) = self.place(key)?;
        let file = self
            .files
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
        Ok(page)
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
