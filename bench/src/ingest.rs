//! How fast a storage node takes WAL: split, decoded, turned into mini-records and state changes, and
//! ingested into a page store, by one thread.
//!
//! The rate is of that thread's processor time. Layer files are written by threads of the store beside
//! it; the rate over elapsed time, which includes waiting for them, is a second series.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use page_server::LocalIngest;
use page_server::import::{ImportPlan, import_cluster};
use page_store::StoreOptions;
use pg_types::Lsn;
use pg_wal::StreamError;
use testkit::PgBinaries;

use crate::Effort;
use crate::processor_time::ProcessorTime;
use crate::report::{Report, Series};
use crate::wal_load::WalLoad;

/// Bytes of WAL in one message of a server (`MAX_SEND_SIZE`).
const MESSAGE: usize = 128 << 10;

/// What one ingestion did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ingested {
    /// WAL records taken.
    pub records: u64,
    /// Bytes of WAL taken.
    pub bytes: u64,
    /// Processor time of the ingesting thread, in seconds.
    pub busy: f64,
    /// Elapsed time, until everything was in layer files, in seconds.
    pub elapsed: f64,
}

/// Runs the bench.
///
/// # Errors
/// When a server fails, or the WAL cannot be ingested.
pub fn run(binaries: &PgBinaries, effort: &Effort) -> Result<Report> {
    let scratch = tempfile::Builder::new()
        .prefix("strandline-ingest-")
        .tempdir()?;
    testkit::OrdinaryUser::current()?.own(scratch.path())?;
    eprintln!("  writing {} transactions of WAL", effort.wal_transactions);
    let load = WalLoad::make(
        binaries,
        scratch.path(),
        effort.scale,
        effort.wal_transactions,
    )?;
    let segments = load.wal.segments()?;
    let mut report = Report::new(
        "ingest",
        "taking a pgbench WAL into a page store on one core",
        &load.version,
    );
    let mut bytes = Series::new("ingest/strandline", "MB/s");
    let mut records = Series::new("ingest records/strandline", "million records/s");
    let mut durable = Series::new("ingest to layer files, elapsed/strandline", "MB/s");
    let mut last = Ingested::default();
    for _ in 0..effort.rounds {
        let store = scratch.path().join("store");
        import(&load.wal.base, &store)?;
        last = ingest(&store, &segments)?;
        std::fs::remove_dir_all(&store)?;
        bytes.values.push(last.bytes as f64 / 1e6 / last.busy);
        records.values.push(last.records as f64 / 1e6 / last.busy);
        durable.values.push(last.bytes as f64 / 1e6 / last.elapsed);
        eprintln!(
            "  {} records, {:.1} MB in {:.2} s of the processor, {:.2} s to layer files",
            last.records,
            last.bytes as f64 / 1e6,
            last.busy,
            last.elapsed
        );
    }
    report.finding("records", last.records as f64, "");
    report.finding("WAL", last.bytes as f64 / 1e6, "MB");
    report.finding("ingest", bytes.median(), "MB/s");
    report.finding("ingest", records.median(), "million records/s");
    report.series.extend([bytes, durable, records]);
    Ok(report)
}

/// Imports the cluster in `base` into a new store.
///
/// # Errors
/// As [`import_cluster`].
pub fn import(base: &Path, store: &Path) -> Result<()> {
    let plan = ImportPlan {
        pgdata: base.to_owned(),
        store_dir: store.to_owned(),
    };
    import_cluster(&plan, |_| {})?;
    Ok(())
}

/// Ingests the WAL in `segments` into the imported store in `directory`.
///
/// # Errors
/// When it cannot be ingested.
pub fn ingest(directory: &Path, segments: &[(Lsn, Vec<u8>)]) -> Result<Ingested> {
    let mut ingest = LocalIngest::open(directory, StoreOptions::default())?;
    let from = ingest.store().applied();
    let begun = Instant::now();
    let processor = ProcessorTime::of_this_thread()?;
    'wal: for (at, bytes) in segments {
        let mut at = *at;
        for message in bytes.chunks(MESSAGE) {
            // The log of a crashed server ends somewhere in its last segment.
            if let Err(error) = ingest.apply(at, message) {
                match error.downcast_ref() {
                    Some(StreamError::EndOfWal { .. }) => break 'wal,
                    _ => return Err(error),
                }
            }
            at = at.advance(message.len() as u64);
        }
    }
    let busy = processor.elapsed()?.as_secs_f64();
    let upto = ingest.store().flush()?.lsn;
    Ok(Ingested {
        records: ingest.records(),
        bytes: upto.since(from),
        busy,
        elapsed: begun.elapsed().as_secs_f64(),
    })
}
