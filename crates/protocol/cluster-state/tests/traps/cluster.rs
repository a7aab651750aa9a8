//! A cluster fed with hand-made records.

use cluster_state::{
    ChangeSink, ClusterHistory, ClusterIngest, EncodedChange, IngestError, Skeleton, StateChange,
};
use pg_page::ControlFile;
use pg_types::{
    CheckPoint, FullXid, Lsn, PageKey, PgMajor, RelFileLocator, RelFork, TimelineId, Xid,
};
use pg_wal::{RmgrId, StreamedRecord};

/// End of the import's checkpoint.
pub const IMPORTED: Lsn = Lsn(0x0100_0000);

/// Key, LSN and value as the page store keeps them.
type Stored = Vec<(Vec<u8>, Lsn, Option<Vec<u8>>)>;

pub struct Cluster {
    pub major: PgMajor,
    pub history: ClusterHistory,
    pub ingest: ClusterIngest,
    pub pages: Vec<(PageKey, Lsn)>,
    stored: Stored,
    at: Lsn,
}

/// A control file as an importer finds it.
pub fn control_file(major: PgMajor, checkpoint: &CheckPoint) -> ControlFile {
    let mut bytes = vec![0; 8192];
    let version: u32 = match major {
        PgMajor::V18 => 1800,
        PgMajor::V17 => 1700,
        _ => 1300,
    };
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &0x7A11_u64.to_le_bytes());
    put(8, &version.to_le_bytes());
    put(12, &major.catalog_version().to_le_bytes());
    put(16, &1u32.to_le_bytes());
    put(204, &8u32.to_le_bytes());
    put(208, &1_234_567.0f64.to_le_bytes());
    put(216, &8192u32.to_le_bytes());
    put(220, &131_072u32.to_le_bytes());
    put(224, &8192u32.to_le_bytes());
    put(228, &(16u32 << 20).to_le_bytes());
    put(232, &64u32.to_le_bytes());
    put(236, &32u32.to_le_bytes());
    put(240, &1996u32.to_le_bytes());
    put(244, &2048u32.to_le_bytes());
    put(248, &[1]);
    let crc_at = if version >= 1800 { 292 } else { 288 };
    let crc = crc32c(&bytes[..crc_at]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    let mut control = ControlFile::decode(&bytes).expect("a valid control file");
    control.set_checkpoint(checkpoint);
    control
}

/// CRC-32C bit by bit; the format crates' own is what is under test elsewhere.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 {
                crc >> 1 ^ 0x82F6_3B78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

pub fn checkpoint() -> CheckPoint {
    CheckPoint {
        timeline: TimelineId(1),
        prev_timeline: TimelineId(1),
        next_xid: FullXid::new(0, 800),
        next_oid: 16_384,
        next_multi: 1,
        next_multi_offset: 0,
        oldest_xid: 717,
        oldest_xid_db: 1,
        oldest_multi: 1,
        oldest_multi_db: 1,
        ..CheckPoint::default()
    }
}

struct Sink<'a> {
    history: &'a mut ClusterHistory,
    pages: &'a mut Vec<(PageKey, Lsn)>,
    stored: &'a mut Stored,
}

impl ChangeSink for Sink<'_> {
    fn page(&mut self, key: PageKey, lsn: Lsn, mini: &[u8]) {
        assert!(pg_wal::MiniRecord::decode(mini).is_ok());
        self.pages.push((key, lsn));
    }

    fn state(&mut self, lsn: Lsn, change: StateChange) {
        let mut encoded = EncodedChange::default();
        change.encode(&mut encoded);
        let key = encoded.key().to_vec();
        assert!(
            !self
                .stored
                .iter()
                .any(|(other, at, _)| *other == key && *at == lsn),
            "two changes of one thing at one LSN"
        );
        self.stored
            .push((key, lsn, encoded.value().map(<[u8]>::to_vec)));
        self.history.insert(lsn, change);
    }
}

impl Cluster {
    pub fn new(major: PgMajor, checkpoint: &CheckPoint, more: Vec<StateChange>) -> Cluster {
        let mut history = ClusterHistory::default();
        let (mut pages, mut stored) = (Vec::new(), Vec::new());
        let control = control_file(major, checkpoint);
        for change in StateChange::of_control_file(&control)
            .into_iter()
            .chain(more)
        {
            let mut sink = Sink {
                history: &mut history,
                pages: &mut pages,
                stored: &mut stored,
            };
            sink.state(IMPORTED, change);
        }
        let ingest = ClusterIngest::resume(&history, IMPORTED).expect("a complete history");
        Cluster {
            major,
            history,
            ingest,
            pages,
            stored,
            at: IMPORTED,
        }
    }

    /// Feeds a record with block references and returns its end.
    pub fn feed_blocks(
        &mut self,
        rmid: RmgrId,
        info: u8,
        xid: Xid,
        blocks: &[(RelFork, u32)],
        main: &[u8],
    ) -> Result<Lsn, IngestError> {
        let mut body = Vec::new();
        for (id, (fork, block)) in blocks.iter().enumerate() {
            // Will-init, no data.
            body.extend_from_slice(&[id as u8, fork.fork as u8 | 0x40, 0, 0]);
            let RelFileLocator { spc, db, rel } = fork.locator;
            for field in [spc, db, rel, *block] {
                body.extend_from_slice(&field.to_le_bytes());
            }
        }
        if !main.is_empty() {
            body.push(254);
            body.extend_from_slice(&(main.len() as u32).to_le_bytes());
            body.extend_from_slice(main);
        }
        let total = 24 + body.len();
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(total as u32).to_le_bytes());
        bytes.extend_from_slice(&xid.to_le_bytes());
        bytes.extend_from_slice(&0u64.to_le_bytes());
        bytes.extend_from_slice(&[info, rmid.0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&body);
        let start = self.at;
        let end = start.advance(total as u64).align8();
        let record = StreamedRecord {
            start,
            end,
            bytes: &bytes,
        };
        let mut sink = Sink {
            history: &mut self.history,
            pages: &mut self.pages,
            stored: &mut self.stored,
        };
        self.ingest.ingest(&record, &mut sink)?;
        self.at = end;
        Ok(end)
    }

    /// Feeds a record without blocks and returns its end.
    pub fn feed(&mut self, rmid: RmgrId, info: u8, xid: Xid, main: &[u8]) -> Lsn {
        self.feed_blocks(rmid, info, xid, &[], main)
            .expect("a record that can be ingested")
    }

    /// Creates `fork` with `blocks` blocks of full-page images.
    pub fn write(&mut self, fork: RelFork, blocks: std::ops::Range<u32>) -> Lsn {
        let mut end = self.at;
        for block in blocks {
            // A sequence record rebuilds its page, so it needs no image.
            let mut main = Vec::new();
            let RelFileLocator { spc, db, rel } = fork.locator;
            for field in [spc, db, rel] {
                main.extend_from_slice(&field.to_le_bytes());
            }
            main.extend_from_slice(&[0; 40]);
            end = self
                .feed_blocks(RmgrId::SEQ, 0, 0, &[(fork, block)], &main)
                .expect("a sequence record");
        }
        end
    }

    pub fn skeleton(&self, lsn: Lsn) -> Skeleton {
        self.history
            .skeleton_at(lsn, Lsn::INVALID)
            .expect("a skeleton")
    }

    pub fn checkpoint_at(&self, lsn: Lsn) -> CheckPoint {
        let hex = self.skeleton(lsn).control;
        ControlFile::decode(&unhex(&hex))
            .expect("a control file")
            .checkpoint()
    }

    /// What another process knows after loading what was stored.
    pub fn reloaded(&self) -> Cluster {
        let mut entries = self.stored.clone();
        entries.reverse();
        let history = ClusterHistory::load(entries).expect("stored state");
        let ingest = ClusterIngest::resume(&history, self.at).expect("a complete history");
        Cluster {
            major: self.major,
            history,
            ingest,
            pages: Vec::new(),
            stored: self.stored.clone(),
            at: self.at,
        }
    }
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect()
}

/// Little-endian numbers, one after the other.
pub fn words(fields: &[u32]) -> Vec<u8> {
    fields
        .iter()
        .flat_map(|field| field.to_le_bytes())
        .collect()
}
