//! A model of the store that is too simple to be wrong, and records for real redo to work on.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a failure here is a failed test"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use page_store::{
    BlockHistory, IngestBatch, PageBase, PageOrigin, PageStore, StoreIdentity, StoreOptions,
};
use pg_types::{
    BLCKSZ, ForkNumber, Lsn, PageKey, PgMajor, RelFileLocator, SegmentSize, TimelineId,
};
use pg_wal::{MiniRecord, Record, Target};

pub type Page = [u8; BLCKSZ];

/// Versions of metadata by key.
pub type MetaHistory = BTreeMap<Vec<u8>, Vec<(Lsn, Option<Vec<u8>>)>>;

pub const MAJOR: PgMajor = PgMajor::V17;

pub fn identity() -> StoreIdentity {
    StoreIdentity {
        system_identifier: 0x5F00_1234_5678_9ABC,
        major: MAJOR,
        segment_size: SegmentSize::DEFAULT,
        data_checksums: false,
    }
}

pub fn key(rel: u32, block: u32) -> PageKey {
    PageKey::relation(
        RelFileLocator {
            spc: 1663,
            db: 5,
            rel,
        },
        ForkNumber::Main,
        block,
    )
}

/// Bytes 12..20 of a page header without a hole, so that redo of generic records zeroes nothing.
const HEADER: [u8; 8] = [0x40, 0x1F, 0x40, 0x1F, 0x00, 0x20, 0x04, 0x20];

/// One change of one page.
#[derive(Debug, Clone)]
pub enum Change {
    /// A generic record.
    Edit { offset: u16, bytes: Vec<u8> },
    /// A generic record that builds the page anew.
    Init { offset: u16, bytes: Vec<u8> },
    /// A full-page-image record.
    Fpi(Box<Page>),
    /// A page put into the store as it is.
    Image(Box<Page>),
}

impl Change {
    fn apply(&self, page: &mut Page, end: Lsn) {
        match self {
            Change::Edit { offset, bytes } | Change::Init { offset, bytes } => {
                if matches!(self, Change::Init { .. }) {
                    page.fill(0);
                }
                page[12..20].copy_from_slice(&HEADER);
                let at = usize::from(*offset);
                page[at..at + bytes.len()].copy_from_slice(bytes);
                stamp(page, end);
            }
            Change::Fpi(image) => {
                page.copy_from_slice(image.as_slice());
                if page[14..16] != [0, 0] {
                    stamp(page, end);
                }
            }
            Change::Image(image) => page.copy_from_slice(image.as_slice()),
        }
    }

    /// Adds this change to a batch the way ingestion does.
    pub fn put(&self, key: PageKey, end: Lsn, batch: &mut IngestBatch) {
        let (record, initializes) = match self {
            Change::Image(image) => return batch.image(key, end, image),
            Change::Fpi(image) => (fpi_record(key, image), true),
            Change::Edit { offset, bytes } => (generic_record(key, *offset, bytes, false), false),
            Change::Init { offset, bytes } => (generic_record(key, *offset, bytes, true), true),
        };
        let record = Record::decode(&record, MAJOR).unwrap();
        let mut mini = Vec::new();
        MiniRecord::encode_from(
            &record,
            Target::Block(0),
            initializes,
            false,
            true,
            &mut mini,
        );
        batch.mini(key, end, &mini);
    }
}

fn stamp(page: &mut Page, end: Lsn) {
    page[0..4].copy_from_slice(&((end.0 >> 32) as u32).to_le_bytes());
    page[4..8].copy_from_slice(&(end.0 as u32).to_le_bytes());
}

/// A generic record that writes header and `bytes`.
pub fn generic_record(key: PageKey, offset: u16, bytes: &[u8], init: bool) -> Vec<u8> {
    let mut data = Vec::new();
    for (at, run) in [(12u16, &HEADER[..]), (offset, bytes)] {
        data.extend_from_slice(&at.to_le_bytes());
        data.extend_from_slice(&(run.len() as u16).to_le_bytes());
        data.extend_from_slice(run);
    }
    let flags = 0x20 | if init { 0x40 } else { 0 };
    let mut block = vec![0, flags];
    block.extend_from_slice(&(data.len() as u16).to_le_bytes());
    push_place(key, &mut block);
    record(20, 0, &block, &data)
}

/// An `XLOG_FPI` record.
pub fn fpi_record(key: PageKey, page: &Page) -> Vec<u8> {
    let mut block = vec![0, 0x10, 0, 0];
    block.extend_from_slice(&(BLCKSZ as u16).to_le_bytes());
    block.extend_from_slice(&[0, 0, 0x02]);
    push_place(key, &mut block);
    record(0, 0xB0, &block, page)
}

fn push_place(key: PageKey, out: &mut Vec<u8>) {
    for field in [key.space, key.db, key.rel, key.block] {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

fn record(rmid: u8, info: u8, block: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&((24 + block.len() + payload.len()) as u32).to_le_bytes());
    out.extend_from_slice(&7u32.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(&[info, rmid, 0, 0]);
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(block);
    out.extend_from_slice(payload);
    out
}

/// The lives of blocks, which the store asks for.
#[derive(Default)]
pub struct Lives(Mutex<BTreeMap<PageKey, Vec<PageOrigin>>>);

impl Lives {
    pub fn begin(&self, key: PageKey, since: Lsn, base: PageBase) {
        self.0
            .lock()
            .unwrap()
            .entry(key)
            .or_default()
            .push(PageOrigin { since, base });
    }
}

impl BlockHistory for Lives {
    fn origin(&self, key: &PageKey, lsn: Lsn) -> PageOrigin {
        let lives = self.0.lock().unwrap();
        let of_key = lives.get(key).map(Vec::as_slice).unwrap_or_default();
        let current = of_key.iter().rev().find(|life| life.since <= lsn);
        current.copied().unwrap_or(PageOrigin::ONLY)
    }
}

/// Everything that ever happened, in order.
#[derive(Default)]
pub struct Model {
    pub lives: Arc<Lives>,
    pub changes: Vec<(Lsn, PageKey, Change)>,
    pub meta: Vec<(Lsn, Vec<u8>, Option<Vec<u8>>)>,
}

impl Model {
    /// The page by applying everything from the beginning of its life.
    pub fn page(&self, key: PageKey, lsn: Lsn) -> Box<Page> {
        let origin = self.lives.origin(&key, lsn);
        let mut page = match origin.base {
            PageBase::Zero => Box::new([0; BLCKSZ]),
            PageBase::CopyOf {
                key: source,
                lsn: at,
            } => self.page(source, at),
        };
        for (end, of, change) in &self.changes {
            if *of == key && *end > origin.since && *end <= lsn {
                change.apply(&mut page, *end);
            }
        }
        page
    }

    /// Metadata versions up to `lsn` as the store must list them per key.
    pub fn meta_upto(&self, lsn: Lsn) -> MetaHistory {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (at, key, value) in self.meta.iter().filter(|(at, ..)| *at <= lsn) {
            all.entry(key.clone())
                .or_default()
                .push((*at, value.clone()));
        }
        all
    }

    /// Adds to `batch` everything above `above`, in LSN order: what streaming the log again does.
    pub fn replay_above(&self, above: Lsn, batch: &mut IngestBatch) {
        let mut changes = self
            .changes
            .iter()
            .filter(|(end, ..)| *end > above)
            .peekable();
        let mut meta = self.meta.iter().filter(|(at, ..)| *at > above).peekable();
        loop {
            match (changes.peek(), meta.peek()) {
                (Some((end, ..)), Some((at, ..))) if at < end => {}
                (Some(_), _) => {
                    let (end, key, change) = changes.next().unwrap();
                    change.put(*key, *end, batch);
                    continue;
                }
                (None, None) => return,
                (None, Some(_)) => {}
            }
            let (at, key, value) = meta.next().unwrap();
            batch.meta(key, *at, value.as_deref());
        }
    }
}

/// The metadata of a store by key.
pub fn stored_meta(store: &PageStore) -> MetaHistory {
    let mut all: BTreeMap<Vec<u8>, Vec<_>> = BTreeMap::new();
    store
        .for_each_meta(|key, lsn, value| {
            all.entry(key.to_vec())
                .or_default()
                .push((lsn, value.map(<[u8]>::to_vec)));
        })
        .unwrap();
    all
}

pub fn open(dir: &Path, options: StoreOptions, model: &Model) -> PageStore {
    PageStore::open(
        dir,
        options,
        Arc::clone(&model.lives) as Arc<dyn BlockHistory>,
    )
    .unwrap()
}

/// Ingests everything the store does not have and announces it.
pub fn catch_up(store: &PageStore, model: &Model, upto: Lsn) {
    let mut batch = IngestBatch::new();
    model.replay_above(store.applied(), &mut batch);
    store.ingest(&mut batch).unwrap();
    store.advance(upto, Lsn(upto.0 - 1), TimelineId(1)).unwrap();
}

/// Compares a page of the store with the model.
pub fn assert_page(store: &PageStore, model: &Model, key: PageKey, lsn: Lsn) {
    let mut page = [0xEE; BLCKSZ];
    let info = store.get_page(key, lsn, &mut page).unwrap();
    let expected = model.page(key, lsn);
    assert!(
        page == *expected,
        "{key} at {lsn} ({info:?}): {}",
        difference(&page, &expected)
    );
    assert_eq!(info.zero, page == [0; BLCKSZ], "{key} at {lsn}");
    assert!(info.version <= lsn, "{key} at {lsn}: {info:?}");
}

pub fn difference(found: &Page, expected: &Page) -> String {
    let at = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    at.map_or_else(String::new, |at| {
        format!("byte {at} is {:#04x}, not {:#04x}", found[at], expected[at])
    })
}

/// Compares runs of pages, read at once, with the model.
pub fn assert_run(store: &PageStore, model: &Model, first: PageKey, count: u32, lsn: Lsn) {
    let mut expected_number = 0;
    store.get_pages(first, count, lsn, |number, result| {
        assert_eq!(number, expected_number);
        expected_number += 1;
        let key = PageKey {
            block: first.block + number,
            ..first
        };
        let (page, info) = result.unwrap();
        let expected = model.page(key, lsn);
        assert!(
            page == &*expected,
            "{key} at {lsn}: {}",
            difference(page, &expected)
        );
        assert_eq!(info.zero, *page == [0; BLCKSZ]);
    });
    assert_eq!(expected_number, count);
}

/// A page with a header and recognisable bytes.
pub fn filled(seed: u8) -> Box<Page> {
    let mut page = Box::new([0; BLCKSZ]);
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add(seed);
    }
    page[12..20].copy_from_slice(&HEADER);
    page
}
