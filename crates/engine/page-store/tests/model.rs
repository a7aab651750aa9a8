//! Whatever is put into the store, in whatever order frozen, written, materialised, closed and
//! opened again: every page at every announced LSN is what applying everything from scratch gives.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod support;

use page_store::{IngestBatch, PageBase, PageStore, StoreOptions};
use pg_types::{BLCKSZ, Lsn, PageKey, TimelineId};
use proptest::prelude::*;
use support::{
    Change, Model, assert_page, assert_run, catch_up, filled, identity, key, open, stored_meta,
};

const BLOCKS: u32 = 6;

#[derive(Debug, Clone)]
enum Step {
    Edit {
        block: u32,
        offset: u16,
        bytes: Vec<u8>,
    },
    Init {
        block: u32,
        offset: u16,
        bytes: Vec<u8>,
    },
    Fpi {
        block: u32,
        seed: Option<u8>,
    },
    Image {
        block: u32,
        seed: Option<u8>,
    },
    /// Two changes of one page by one record.
    Twice {
        block: u32,
        byte: u8,
    },
    NewLife {
        block: u32,
    },
    CopyLife {
        block: u32,
        source: u32,
    },
    Meta {
        name: u8,
        value: Option<Vec<u8>>,
    },
    Advance,
    Flush,
    Reopen,
    Read {
        block: u32,
        back: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..300);
    let block = || 0..BLOCKS;
    prop_oneof![
        12 => (block(), 24u16..7000, bytes())
            .prop_map(|(block, offset, bytes)| Step::Edit { block, offset, bytes }),
        2 => (block(), 24u16..7000, bytes())
            .prop_map(|(block, offset, bytes)| Step::Init { block, offset, bytes }),
        1 => (block(), any::<Option<u8>>()).prop_map(|(block, seed)| Step::Fpi { block, seed }),
        1 => (block(), any::<Option<u8>>()).prop_map(|(block, seed)| Step::Image { block, seed }),
        1 => (block(), any::<u8>()).prop_map(|(block, byte)| Step::Twice { block, byte }),
        1 => block().prop_map(|block| Step::NewLife { block }),
        1 => (block(), block()).prop_map(|(block, source)| Step::CopyLife { block, source }),
        2 => (0u8..4, any::<Option<[u8; 9]>>())
            .prop_map(|(name, value)| Step::Meta { name, value: value.map(Vec::from) }),
        8 => Just(Step::Advance),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        6 => (block(), 0usize..20).prop_map(|(block, back)| Step::Read { block, back }),
    ]
}

/// Settings small enough that everything happens within a few dozen steps.
fn options() -> impl Strategy<Value = StoreOptions> {
    (
        500u64..20_000,
        prop_oneof![Just(0u64), Just(1 << 20), Just(1 << 18)],
        1u32..12,
    )
        .prop_map(
            |(freeze_bytes, cache_bytes, image_chain_records)| StoreOptions {
                freeze_bytes,
                cache_bytes,
                image_chain_records,
                image_layer_bytes: 20_000,
                ..StoreOptions::default()
            },
        )
}

struct Run {
    model: Model,
    store: Option<PageStore>,
    dir: tempfile::TempDir,
    options: StoreOptions,
    batch: IngestBatch,
    lsn: Lsn,
    oldest: Lsn,
    /// Announced LSNs, at which pages may be read.
    announced: Vec<Lsn>,
}

impl Run {
    fn new(options: StoreOptions, imported: &[Option<u8>]) -> Run {
        let dir = tempfile::tempdir().unwrap();
        PageStore::create(dir.path(), &identity()).unwrap();
        let mut model = Model::default();
        let store = open(dir.path(), options.clone(), &model);
        let oldest = Lsn(1000);
        let mut writer = store.image_writer(oldest).unwrap();
        // Backwards, so that order of arrival and order of keys differ.
        for (block, seed) in imported.iter().enumerate().rev() {
            let page = seed.map_or_else(|| Box::new([0; BLCKSZ]), filled);
            writer.add(key(1, block as u32), &page).unwrap();
            model
                .changes
                .push((oldest, key(1, block as u32), Change::Image(page)));
        }
        writer.finish().unwrap();
        store.advance(oldest, Lsn(900), TimelineId(1)).unwrap();
        store.flush().unwrap();
        Run {
            model,
            store: Some(store),
            dir,
            options,
            batch: IngestBatch::new(),
            lsn: oldest,
            oldest,
            announced: vec![oldest],
        }
    }

    fn store(&self) -> &PageStore {
        self.store.as_ref().unwrap()
    }

    fn change(&mut self, block: u32, change: Change) {
        let key = key(1, block);
        change.put(key, self.lsn, &mut self.batch);
        self.model.changes.push((self.lsn, key, change));
    }

    fn advance(&mut self) {
        self.store
            .as_ref()
            .unwrap()
            .ingest(&mut self.batch)
            .unwrap();
        self.store()
            .advance(self.lsn, Lsn(self.lsn.0 - 8), TimelineId(1))
            .unwrap();
        self.announced.push(self.lsn);
    }

    fn reopen(&mut self) {
        self.advance();
        self.store = None;
        let store = open(self.dir.path(), self.options.clone(), &self.model);
        assert!(store.disk_consistent().lsn >= self.oldest);
        assert_eq!(
            stored_meta(&store),
            self.model.meta_upto(store.disk_consistent().lsn)
        );
        catch_up(&store, &self.model, self.lsn);
        self.store = Some(store);
    }

    fn step(&mut self, step: Step) {
        self.lsn = self.lsn.advance(8);
        match step {
            Step::Edit {
                block,
                offset,
                bytes,
            } => {
                self.change(block, Change::Edit { offset, bytes });
            }
            Step::Init {
                block,
                offset,
                bytes,
            } => {
                self.change(block, Change::Init { offset, bytes });
            }
            Step::Fpi { block, seed } => {
                let page = seed.map_or_else(|| Box::new([0; BLCKSZ]), filled);
                self.change(block, Change::Fpi(page));
            }
            Step::Image { block, seed } => {
                let page = seed.map_or_else(|| Box::new([0; BLCKSZ]), filled);
                self.change(block, Change::Image(page));
            }
            Step::Twice { block, byte } => {
                self.change(
                    block,
                    Change::Edit {
                        offset: 100,
                        bytes: vec![byte; 20],
                    },
                );
                self.change(
                    block,
                    Change::Edit {
                        offset: 110,
                        bytes: vec![!byte; 20],
                    },
                );
            }
            Step::NewLife { block } => {
                self.model
                    .lives
                    .begin(key(1, block), self.lsn, PageBase::Zero);
            }
            Step::CopyLife { block, source } => {
                // As of just before, or a block copied from itself would never end.
                let base = PageBase::CopyOf {
                    key: key(1, source),
                    lsn: Lsn(self.lsn.0 - 1),
                };
                self.model.lives.begin(key(1, block), self.lsn, base);
            }
            Step::Meta { name, value } => {
                let name = vec![name; 1 + usize::from(name) * 21];
                self.batch.meta(&name, self.lsn, value.as_deref());
                self.model.meta.push((self.lsn, name, value));
            }
            Step::Advance => self.advance(),
            Step::Flush => {
                self.advance();
                assert_eq!(self.store().flush().unwrap().lsn, self.lsn);
            }
            Step::Reopen => self.reopen(),
            Step::Read { block, back } => {
                let at = self.announced.len().saturating_sub(1 + back);
                assert_page(self.store(), &self.model, key(1, block), self.announced[at]);
            }
        }
    }

    fn check_everything(&mut self) {
        self.advance();
        for pass in 0..2 {
            for lsn in self.announced.iter().rev().copied() {
                for block in 0..BLOCKS {
                    assert_page(self.store(), &self.model, key(1, block), lsn);
                }
                assert_run(self.store(), &self.model, key(1, 0), BLOCKS + 2, lsn);
            }
            assert_eq!(stored_meta(self.store()), self.model.meta_upto(self.lsn));
            if pass == 0 {
                self.reopen();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_page_at_every_lsn_is_as_if_replayed_from_scratch(
        options in options(),
        imported in prop::collection::vec(any::<Option<u8>>(), 0..BLOCKS as usize),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut run = Run::new(options, &imported);
        for step in steps {
            run.step(step);
        }
        run.check_everything();
    }
}

#[test]
fn copies_of_copies_end_and_endless_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let mut model = Model::default();
    let store = open(dir.path(), StoreOptions::default(), &model);
    let mut batch = IngestBatch::new();
    let image = Change::Image(filled(3));
    image.put(key(1, 0), Lsn(8), &mut batch);
    model.changes.push((Lsn(8), key(1, 0), image));
    store.ingest(&mut batch).unwrap();
    store.advance(Lsn(100), Lsn(8), TimelineId(1)).unwrap();
    for rel in 2..40 {
        let base = PageBase::CopyOf {
            key: key(rel - 1, 0),
            lsn: Lsn(8 + u64::from(rel)),
        };
        model
            .lives
            .begin(key(rel, 0), Lsn(8 + u64::from(rel)), base);
    }
    assert_page(&store, &model, key(39, 0), Lsn(100));
    let this = PageBase::CopyOf {
        key: key(99, 0),
        lsn: Lsn(50),
    };
    model.lives.begin(key(99, 0), Lsn(20), this);
    let mut page = [0; BLCKSZ];
    let error = store.get_page(key(99, 0), Lsn(60), &mut page).unwrap_err();
    assert!(error.to_string().contains("copy of a copy"), "{error}");
}

#[test]
fn reads_outside_the_kept_lsns_are_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let model = Model::default();
    let store = open(dir.path(), StoreOptions::default(), &model);
    let mut writer = store.image_writer(Lsn(1000)).unwrap();
    writer.add(key(1, 0), &filled(1)).unwrap();
    writer.finish().unwrap();
    store.advance(Lsn(1000), Lsn(900), TimelineId(1)).unwrap();
    let mut page = [0; BLCKSZ];
    let early = store
        .get_page(key(1, 0), Lsn(999), &mut page)
        .unwrap_err()
        .to_string();
    assert!(early.contains("read at 0/3E8 or later"), "{early}");
    let late = store
        .get_page(key(1, 0), Lsn(1001), &mut page)
        .unwrap_err()
        .to_string();
    assert!(late.contains("ingested up to 0/3E8"), "{late}");
    let mut refused = 0;
    store.get_pages(key(1, 0), 3, Lsn(1001), |_, result| {
        refused += u32::from(result.is_err())
    });
    assert_eq!(refused, 3);
    assert!(store.image_writer(Lsn(999)).is_err());
}

#[test]
fn changes_come_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let store = open(dir.path(), StoreOptions::default(), &Model::default());
    let edit = Change::Edit {
        offset: 24,
        bytes: vec![1],
    };
    let mut batch = IngestBatch::new();
    let offer = |batch: &mut IngestBatch, lsns: &[u64]| {
        batch.clear();
        for lsn in lsns {
            edit.put(key(1, 0), Lsn(*lsn), batch);
        }
        store.ingest(batch).map_err(|error| error.to_string())
    };
    offer(&mut batch, &[8, 16, 16]).unwrap();
    assert!(
        offer(&mut batch, &[24, 16])
            .unwrap_err()
            .contains("LSN order")
    );
    assert!(offer(&mut batch, &[8]).unwrap_err().contains("LSN order"));
    assert!(store.advance(Lsn(8), Lsn(0), TimelineId(1)).is_err());
    store.advance(Lsn(16), Lsn(8), TimelineId(1)).unwrap();
    assert!(offer(&mut batch, &[16]).unwrap_err().contains("came again"));
    batch.clear();
    batch.meta(&[7; 65], Lsn(24), None);
    assert!(
        store
            .ingest(&mut batch)
            .unwrap_err()
            .to_string()
            .contains("64 bytes")
    );
}

#[test]
fn a_page_given_twice_to_an_import_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let options = StoreOptions {
        image_layer_bytes: 20_000,
        ..StoreOptions::default()
    };
    for apart in [0u32, 1, 5] {
        let store = open(dir.path(), options.clone(), &Model::default());
        let mut writer = store.image_writer(Lsn(8)).unwrap();
        let added = (0..=apart)
            .chain([0])
            .try_for_each(|block| writer.add(key(1, block), &filled(1)));
        let error = added
            .and_then(|()| writer.finish().map(drop))
            .unwrap_err()
            .to_string();
        assert!(error.contains("1663/5/1 block 0"), "{error}");
    }
}

#[test]
fn runs_cross_layers_zero_pages_and_changed_pages() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let mut model = Model::default();
    let options = StoreOptions {
        image_layer_bytes: 500_000,
        ..StoreOptions::default()
    };
    let store = open(dir.path(), options, &model);
    let mut writer = store.image_writer(Lsn(8)).unwrap();
    for block in 0..300u32 {
        let page = if block % 50 < 5 {
            Box::new([0; BLCKSZ])
        } else {
            filled(block as u8)
        };
        writer.add(key(1, block), &page).unwrap();
        model
            .changes
            .push((Lsn(8), key(1, block), Change::Image(page)));
    }
    assert!(writer.finish().unwrap() > 2);
    let upto = Lsn(16 + 300 * 8);
    let mut batch = IngestBatch::new();
    for block in (7..300u32).step_by(31) {
        let lsn = Lsn(16 + u64::from(block) * 8);
        let change = Change::Edit {
            offset: 1000,
            bytes: vec![9; 10],
        };
        change.put(key(1, block), lsn, &mut batch);
        model.changes.push((lsn, key(1, block), change));
    }
    store.ingest(&mut batch).unwrap();
    store.advance(upto, upto, TimelineId(1)).unwrap();
    for flushed in [false, true] {
        if flushed {
            store.flush().unwrap();
        }
        for (first, count) in [(0, 310), (1, 1), (129, 150), (299, 1)] {
            for lsn in [Lsn(8), Lsn(16 + 100 * 8), upto] {
                assert_run(&store, &model, key(1, first), count, lsn);
            }
        }
    }
    let beyond = PageKey {
        block: u32::MAX - 1,
        ..key(1, 0)
    };
    let mut numbers = Vec::new();
    store.get_pages(beyond, 2, upto, |number, result| {
        numbers.push((number, result.is_ok()))
    });
    assert_eq!(numbers, [(0, true), (1, true)]);
}

#[test]
fn no_change_is_applied_twice() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let options = StoreOptions {
        image_chain_records: 3,
        ..StoreOptions::default()
    };
    let store = open(dir.path(), options.clone(), &Model::default());
    let edit = |number: u64| Change::Edit {
        offset: 24,
        bytes: vec![number as u8; 4],
    };
    let mut batch = IngestBatch::new();
    let mut page = [0; BLCKSZ];
    let mut put = |store: &PageStore, numbers: std::ops::RangeInclusive<u64>| {
        let last = Lsn(numbers.end() * 8);
        for number in numbers {
            edit(number).put(key(1, 0), Lsn(number * 8), &mut batch);
        }
        store.ingest(&mut batch).unwrap();
        store.advance(last, last, TimelineId(1)).unwrap();
    };
    put(&store, 1..=6);
    // The sixth change is at the LSN of the image.
    store.flush().unwrap();
    let waited = std::time::Instant::now();
    while store.stats().pages_materialised == 0 {
        assert!(waited.elapsed().as_secs() < 10);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let at_image = store.get_page(key(1, 0), Lsn(48), &mut page).unwrap();
    assert_eq!((at_image.version, at_image.chain), (Lsn(48), 0));
    put(&store, 7..=7);
    let after = store.get_page(key(1, 0), Lsn(56), &mut page).unwrap();
    assert_eq!(
        (after.version, after.chain, after.from_cache),
        (Lsn(56), 1, false)
    );
    // Now the seventh is in the cache.
    let again = store.get_page(key(1, 0), Lsn(56), &mut page).unwrap();
    assert_eq!(
        (again.version, again.chain, again.from_cache),
        (Lsn(56), 0, true)
    );
    put(&store, 8..=9);
    let later = store.get_page(key(1, 0), Lsn(72), &mut page).unwrap();
    assert_eq!((later.version, later.chain), (Lsn(72), 2));
    store.flush().unwrap();
    drop(store);
    let store = open(dir.path(), options, &Model::default());
    let reopened = store.get_page(key(1, 0), Lsn(72), &mut page).unwrap();
    assert_eq!((reopened.version, reopened.chain), (Lsn(72), 3));
    let middle = store.get_page(key(1, 0), Lsn(40), &mut page).unwrap();
    assert_eq!((middle.version, middle.chain), (Lsn(40), 5));
    let cached_base = store.get_page(key(1, 0), Lsn(47), &mut page).unwrap();
    assert_eq!((cached_base.version, cached_base.chain), (Lsn(40), 0));
}
