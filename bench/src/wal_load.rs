//! A pgbench WAL to replay: a base directory from before it and the directory of a server that crashed
//! right after it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pg_page::control::ControlFile;
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use testkit::{PgBinaries, StockServer};

use crate::pgbench::{Side, run};

/// Settings under which Strandline's compute nodes write WAL.
const SETTINGS: [(&str, &str); 8] = [
    ("shared_buffers", "512MB"),
    ("full_page_writes", "off"),
    ("wal_level", "replica"),
    ("max_wal_size", "64GB"),
    ("checkpoint_timeout", "1d"),
    ("autovacuum", "on"),
    ("bgwriter_lru_maxpages", "0"),
    ("wal_consistency_checking", "gin,gist,spgist,hash,brin"),
];

/// The load, and the server that made it.
#[derive(Debug)]
pub struct WalLoad {
    /// The server, stopped as by a crash.
    pub crashed: StockServer,
    /// What it wrote.
    pub wal: RecordedWal,
    /// Its version, for the report.
    pub version: String,
}

/// WAL in segment files, and the data directory that it changes.
#[derive(Debug)]
pub struct RecordedWal {
    /// Copy of the data directory from before the load.
    pub base: PathBuf,
    /// Directory of the segment files.
    pub directory: PathBuf,
    /// Where the load's WAL begins: the shutdown checkpoint record before it.
    pub begin: Lsn,
    /// Timeline of the WAL.
    pub timeline: TimelineId,
    /// Segment size.
    pub segment_size: SegmentSize,
    /// Major of the server.
    pub major: PgMajor,
}

impl WalLoad {
    /// Makes the load below `scratch`: pgbench at `scale`, then `transactions` of TPC-B by two clients.
    ///
    /// # Errors
    /// When the server or pgbench fails.
    pub fn make(
        binaries: &PgBinaries,
        scratch: &Path,
        scale: u32,
        transactions: u32,
    ) -> Result<WalLoad> {
        let home = scratch.join("server");
        let mut server = StockServer::init(binaries.clone(), &home, &[], &SETTINGS)?;
        server.start()?;
        let side = Side::new(
            "stock",
            server.socket_dir().to_path_buf(),
            server.port(),
            binaries,
        );
        let version = side.psql("SHOW server_version")?.trim().to_owned();
        side.initialize(scale)?;
        server.stop()?;
        let base = scratch.join("base");
        run(std::process::Command::new("cp")
            .arg("-a")
            .arg(server.data_dir())
            .arg(&base))?;
        server.start()?;
        side.run_transactions(2, transactions / 2)?;
        server.crash()?;
        let wal = RecordedWal::open(&base, &server.data_dir().join("pg_wal"))?;
        Ok(WalLoad {
            crashed: server,
            wal,
            version,
        })
    }
}

impl RecordedWal {
    /// The WAL in `directory` from the last checkpoint of the cleanly stopped cluster in `base` on.
    ///
    /// # Errors
    /// When the control file cannot be read.
    pub fn open(base: &Path, directory: &Path) -> Result<RecordedWal> {
        let path = base.join("global/pg_control");
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let control = ControlFile::decode(&bytes)?;
        Ok(RecordedWal {
            base: base.to_owned(),
            directory: directory.to_owned(),
            begin: control.checkpoint_lsn(),
            timeline: control.checkpoint().timeline,
            segment_size: control.segment_size(),
            major: control.major(),
        })
    }

    /// The load's WAL from [`RecordedWal::begin`] on, segment by segment, as far as segments exist.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn segments(&self) -> Result<Vec<(Lsn, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut number = self.segment_size.segment_of(self.begin);
        loop {
            let path = self
                .directory
                .join(self.segment_size.file_name(self.timeline, number));
            if !path.exists() {
                return Ok(found);
            }
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            let start = self.segment_size.start_of(number);
            let skip = usize::try_from(self.begin.since(start))?;
            found.push((
                start.max(self.begin),
                bytes.get(skip..).unwrap_or_default().to_vec(),
            ));
            number += 1;
        }
    }
}
