//! Crashes and failing disks.
//!
//! A crash can come between any two file operations. The directory is copied before and after every
//! one of them: as if the operating system had written everything out, as if it had kept only what was
//! synced, and as if of all unsynced names only the manifest's had reached the disk; each copy must open, must have everything that was announced as
//! durable, and must be able to go on. Then every single operation is made to fail in turn.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use page_store::{
    DiskFaults, DiskOperation, Fault, FlushError, IngestBatch, PageStore, StoreOptions,
};
use pg_types::{Lsn, TimelineId};
use support::{
    Change, Model, assert_page, assert_run, catch_up, filled, identity, key, open, stored_meta,
};

const BLOCKS: u32 = 5;
const ROUNDS: u64 = 5;
/// Copies taken at a time: everything written, only what was synced, and that with the manifest's
/// latest name ahead of all other names.
const COPIES: usize = 3;
const IMPORTED: Lsn = Lsn(1000);

fn options(faults: Option<Arc<dyn DiskFaults>>) -> StoreOptions {
    StoreOptions {
        freeze_bytes: 1 << 20,
        cache_bytes: 0,
        image_chain_records: 6,
        image_layer_bytes: 20_000,
        faults,
        ..StoreOptions::default()
    }
}

fn end_of(round: u64) -> Lsn {
    Lsn(IMPORTED.0 + round * 1000)
}

/// What all runs do: an import, then rounds of changes.
fn history() -> Model {
    let mut model = Model::default();
    for block in 0..BLOCKS {
        let page = if block == 2 {
            Box::new([0; 8192])
        } else {
            filled(block as u8)
        };
        model
            .changes
            .push((IMPORTED, key(1, block), Change::Image(page)));
    }
    for round in 0..ROUNDS {
        for number in 0..12u64 {
            let lsn = Lsn(end_of(round).0 + 8 + number * 8);
            let block = (number * 7 + round) as u32 % BLOCKS;
            let bytes = vec![round as u8 * 16 + number as u8; 40];
            let change = Change::Edit {
                offset: 100 + number as u16 * 50,
                bytes,
            };
            model.changes.push((lsn, key(1, block), change));
            if number % 4 == 0 {
                let value = (number % 8 == 0).then(|| vec![round as u8; 5]);
                model.meta.push((lsn, vec![b'm', number as u8], value));
            }
        }
    }
    model
}

/// Imports and ingests round by round, flushing each; tells `announce` what is durable.
fn run(store: &PageStore, model: &Model, announce: &dyn Fn(Lsn)) -> Result<(), String> {
    if store.disk_consistent().lsn < IMPORTED {
        let mut writer = store
            .image_writer(IMPORTED)
            .map_err(|error| error.to_string())?;
        for (lsn, key, change) in &model.changes {
            if let (true, Change::Image(page)) = (*lsn == IMPORTED, change) {
                writer.add(*key, page).map_err(|error| error.to_string())?;
            }
        }
        writer.finish().map_err(|error| error.to_string())?;
        store
            .advance(IMPORTED, Lsn(900), TimelineId(1))
            .map_err(|error| error.to_string())?;
        announce(store.flush().map_err(|error| error.to_string())?.lsn);
    }
    for round in 0..ROUNDS {
        let end = end_of(round + 1);
        if end <= store.applied() {
            continue;
        }
        let upto = Model {
            lives: Arc::clone(&model.lives),
            changes: model
                .changes
                .iter()
                .filter(|(lsn, ..)| *lsn <= end)
                .cloned()
                .collect(),
            meta: model
                .meta
                .iter()
                .filter(|(lsn, ..)| *lsn <= end)
                .cloned()
                .collect(),
        };
        let mut batch = IngestBatch::new();
        upto.replay_above(store.applied(), &mut batch);
        store
            .ingest(&mut batch)
            .map_err(|error| error.to_string())?;
        store
            .advance(end, Lsn(end.0 - 8), TimelineId(1))
            .map_err(|error| error.to_string())?;
        announce(store.flush().map_err(|error| error.to_string())?.lsn);
    }
    Ok(())
}

fn assert_state(store: &PageStore, model: &Model, upto: Lsn) {
    for round in 0..=ROUNDS {
        let lsn = end_of(round);
        if lsn <= upto {
            for block in 0..BLOCKS {
                assert_page(store, model, key(1, block), lsn);
            }
            assert_run(store, model, key(1, 0), BLOCKS, lsn);
        }
    }
    // A batch may have been taken and its announcement refused, when the disk failed in between.
    let mut stored = stored_meta(store);
    for versions in stored.values_mut() {
        versions.retain(|(lsn, _)| *lsn <= upto);
    }
    stored.retain(|_, versions| !versions.is_empty());
    assert_eq!(stored, model.meta_upto(upto));
}

/// What would survive a loss of power: names as of the last directory sync, contents as of the last
/// sync of each file.
#[derive(Debug, Default)]
struct Durable {
    /// Contents as of the last sync, by present path.
    synced: BTreeMap<PathBuf, Vec<u8>>,
    /// The directory as of its last sync.
    directory: BTreeMap<PathBuf, Vec<u8>>,
}

/// Copies the directory at every operation.
#[derive(Debug)]
struct Camera {
    dir: PathBuf,
    copies: PathBuf,
    taken: AtomicUsize,
    /// LSN announced as durable, for each copy.
    announced: Mutex<Vec<u64>>,
    durable_lsn: AtomicU64,
    durable: Mutex<Durable>,
}

impl Camera {
    fn copy(&self) {
        let durable = self.durable.lock().unwrap();
        let number = self.taken.fetch_add(COPIES, Ordering::SeqCst);
        self.announced
            .lock()
            .unwrap()
            .push(self.durable_lsn.load(Ordering::SeqCst));
        let whole = self.copies.join(number.to_string());
        fs::create_dir(&whole).unwrap();
        for entry in fs::read_dir(&self.dir).unwrap() {
            let path = entry.unwrap().path();
            // A file may be renamed by the other thread in between.
            let _ = fs::copy(&path, whole.join(path.file_name().unwrap()));
        }
        let synced = self.copies.join((number + 1).to_string());
        fs::create_dir(&synced).unwrap();
        let reordered = self.copies.join((number + 2).to_string());
        fs::create_dir(&reordered).unwrap();
        for (path, bytes) in &durable.directory {
            fs::write(synced.join(path.file_name().unwrap()), bytes).unwrap();
            fs::write(reordered.join(path.file_name().unwrap()), bytes).unwrap();
        }
        let manifest = durable.synced.get(&self.dir.join("manifest")).unwrap();
        fs::write(reordered.join("manifest"), manifest).unwrap();
    }

    fn note(&self, operation: &DiskOperation<'_>) {
        let mut durable = self.durable.lock().unwrap();
        match operation {
            DiskOperation::Create { path } => {
                durable.synced.insert(path.to_path_buf(), Vec::new());
            }
            DiskOperation::Sync { path } => {
                durable
                    .synced
                    .insert(path.to_path_buf(), fs::read(path).unwrap());
            }
            DiskOperation::Rename { from, to } => {
                let bytes = durable.synced.remove(*from).unwrap();
                durable.synced.insert(to.to_path_buf(), bytes);
            }
            DiskOperation::Remove { path } => {
                durable.synced.remove(*path);
            }
            DiskOperation::SyncDirectory { .. } => durable.directory = durable.synced.clone(),
            DiskOperation::Write { .. } | DiskOperation::Read { .. } => {}
        }
    }
}

impl DiskFaults for Camera {
    fn before(&self, operation: &DiskOperation<'_>) -> Fault {
        if !matches!(operation, DiskOperation::Read { .. }) {
            self.copy();
        }
        Fault::None
    }

    fn after(&self, operation: &DiskOperation<'_>) {
        if !matches!(operation, DiskOperation::Read { .. }) {
            self.note(operation);
            self.copy();
        }
    }
}

#[test]
fn nothing_durable_is_lost_whenever_the_crash_comes() {
    let home = tempfile::tempdir().unwrap();
    let (dir, copies) = (home.path().join("store"), home.path().join("copies"));
    fs::create_dir(&copies).unwrap();
    PageStore::create(&dir, &identity()).unwrap();
    let manifest = dir.join("manifest");
    let content = fs::read(&manifest).unwrap();
    let created = BTreeMap::from([(manifest, content)]);
    let camera = Arc::new(Camera {
        dir: dir.clone(),
        copies: copies.clone(),
        taken: AtomicUsize::new(0),
        announced: Mutex::default(),
        durable_lsn: AtomicU64::new(0),
        durable: Mutex::new(Durable {
            synced: created.clone(),
            directory: created,
        }),
    });
    let model = history();
    let store = open(
        &dir,
        options(Some(Arc::clone(&camera) as Arc<dyn DiskFaults>)),
        &model,
    );
    run(&store, &model, &|lsn| {
        camera.durable_lsn.store(lsn.0, Ordering::SeqCst)
    })
    .unwrap();
    // Background replay is part of what may be interrupted.
    let waited = std::time::Instant::now();
    while store.stats().pages_materialised == 0 && waited.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(store.stats().pages_materialised > 0);
    drop(store);

    let taken = camera.taken.load(Ordering::SeqCst);
    assert!(taken > 100, "only {taken} copies");
    let announced = camera.announced.lock().unwrap();
    for number in 0..taken {
        let least = Lsn(announced[number / COPIES]);
        let store = open(&copies.join(number.to_string()), options(None), &model);
        let durable = store.disk_consistent().lsn;
        assert!(
            durable >= least,
            "copy {number}: {durable} is below the announced {least}"
        );
        if durable >= IMPORTED {
            assert_state(&store, &model, durable);
            catch_up(&store, &model, end_of(ROUNDS));
        } else {
            assert_eq!(least, Lsn(0));
            run(&store, &model, &|_| {}).unwrap();
        }
        assert_state(&store, &model, end_of(ROUNDS));
    }
}

/// Makes one operation fail.
#[derive(Debug)]
struct FailAt {
    number: usize,
    seen: AtomicUsize,
    short: bool,
    /// The path whose operation failed.
    failed: Mutex<Option<PathBuf>>,
}

impl FailAt {
    fn new(number: usize, short: bool) -> Arc<FailAt> {
        let (seen, failed) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(FailAt {
            number,
            seen,
            short,
            failed,
        })
    }
}

impl DiskFaults for FailAt {
    fn before(&self, operation: &DiskOperation<'_>) -> Fault {
        let path = match operation {
            DiskOperation::Create { path }
            | DiskOperation::Write { path, .. }
            | DiskOperation::Sync { path }
            | DiskOperation::SyncDirectory { path } => *path,
            DiskOperation::Rename { from, .. } => *from,
            DiskOperation::Remove { .. } | DiskOperation::Read { .. } => return Fault::None,
        };
        if self.seen.fetch_add(1, Ordering::SeqCst) != self.number {
            return Fault::None;
        }
        *self.failed.lock().unwrap() = Some(path.to_owned());
        let error = io::Error::from(io::ErrorKind::StorageFull);
        match operation {
            DiskOperation::Write { bytes, .. } if self.short => Fault::Short {
                bytes: bytes / 2,
                error,
            },
            _ => Fault::Fail(error),
        }
    }

    fn after(&self, _operation: &DiskOperation<'_>) {}
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_full_disk_ends_ingestion_loudly_and_loses_nothing() {
    let model = history();
    for short in [false, true] {
        let mut number = 0;
        loop {
            let home = tempfile::tempdir().unwrap();
            PageStore::create(home.path(), &identity()).unwrap();
            let faults = FailAt::new(number, short);
            let with_faults = options(Some(Arc::clone(&faults) as Arc<dyn DiskFaults>));
            let store = open(home.path(), with_faults, &model);
            let durable = AtomicU64::new(0);
            let result = run(&store, &model, &|lsn| {
                durable.store(lsn.0, Ordering::SeqCst)
            });
            let Some(failed) = faults.failed.lock().unwrap().clone() else {
                result.unwrap();
                break;
            };
            // The background threads may have failed after the last call returned.
            let error = result.err().or_else(|| store.stats().error);
            if let Some(error) = error {
                assert!(error.contains(&name(&failed)), "{error}");
                assert!(error.contains("free space"), "{error}");
            }
            if let Some(error) = store.stats().error {
                assert!(error.contains(&name(&failed)), "{error}");
                let mut batch = IngestBatch::new();
                batch.meta(b"x", Lsn(1 << 30), None);
                let refused = store.ingest(&mut batch).unwrap_err().to_string();
                assert!(refused.contains("takes no more changes"), "{refused}");
                assert!(matches!(store.flush(), Err(FlushError::Poisoned(_))));
            }
            let durable = Lsn(durable.load(Ordering::SeqCst));
            assert!(store.disk_consistent().lsn >= durable);
            let applied = store.applied();
            if applied >= IMPORTED {
                assert_state(&store, &model, applied);
            }
            drop(store);
            let store = open(home.path(), options(None), &model);
            assert!(store.disk_consistent().lsn >= durable);
            run(&store, &model, &|_| {}).unwrap();
            assert_state(&store, &model, end_of(ROUNDS));
            number += 1;
        }
        assert!(number > 30, "only {number} operations");
    }
}

#[test]
fn a_failed_write_never_moves_the_durable_watermark() {
    let model = history();
    let home = tempfile::tempdir().unwrap();
    PageStore::create(home.path(), &identity()).unwrap();
    {
        let store = open(home.path(), options(None), &model);
        run(&store, &model, &|_| {}).unwrap();
    }
    let before = open(home.path(), options(None), &model).disk_consistent();
    // Create, write, fsync and rename of the layer, its directory; the same of the manifest, up to
    // its rename: after that the new one may be found, although it was not announced.
    for number in 0..9 {
        let faults = FailAt::new(number, false);
        let store = open(home.path(), options(Some(faults)), &model);
        let mut batch = IngestBatch::new();
        batch.meta(b"later", Lsn(before.lsn.0 + 8), Some(b"value"));
        store.ingest(&mut batch).unwrap();
        store
            .advance(Lsn(before.lsn.0 + 8), before.lsn, TimelineId(1))
            .unwrap();
        let error = store.flush().unwrap_err().to_string();
        assert!(error.contains("could not write"), "{error}");
        assert_eq!(store.disk_consistent(), before);
        let waited = store.wait_applied(Lsn(before.lsn.0 + 99), std::time::Duration::from_secs(60));
        assert!(
            waited
                .unwrap_err()
                .to_string()
                .contains("will not be ingested")
        );
        drop(store);
        let reopened = open(home.path(), options(None), &model).disk_consistent();
        assert!(reopened == before, "{number}: {reopened:?}");
    }
}

#[test]
fn ingestion_waits_for_the_disk_instead_of_filling_memory() {
    #[derive(Debug)]
    struct Slow;
    impl DiskFaults for Slow {
        fn before(&self, operation: &DiskOperation<'_>) -> Fault {
            if matches!(operation, DiskOperation::Sync { .. }) {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            Fault::None
        }
        fn after(&self, _operation: &DiskOperation<'_>) {}
    }
    let home = tempfile::tempdir().unwrap();
    PageStore::create(home.path(), &identity()).unwrap();
    let slow = StoreOptions {
        freeze_bytes: 4000,
        ..options(Some(Arc::new(Slow)))
    };
    let store = open(home.path(), slow, &Model::default());
    let mut batch = IngestBatch::new();
    for number in 1..400u64 {
        let change = Change::Edit {
            offset: 64,
            bytes: vec![number as u8; 300],
        };
        change.put(key(1, number as u32 % 3), Lsn(number * 8), &mut batch);
        store.ingest(&mut batch).unwrap();
        store
            .advance(Lsn(number * 8), Lsn(number * 8 - 8), TimelineId(1))
            .unwrap();
        assert!(store.stats().frozen_layers <= 2);
    }
    assert_eq!(store.flush().unwrap().lsn, Lsn(399 * 8));
    assert!(store.stats().delta_layers > 20);
}

#[test]
fn two_processes_cannot_have_one_store_and_strays_are_removed() {
    let home = tempfile::tempdir().unwrap();
    PageStore::create(home.path(), &identity()).unwrap();
    assert!(PageStore::create(home.path(), &identity()).is_err());
    let model = Model::default();
    let stray = home
        .path()
        .join("delta-0000000000000000-0000000000000008-00000001.sl");
    for stray in [
        stray.clone(),
        stray.with_extension("sl.tmp"),
        home.path().join("manifest.tmp"),
    ] {
        fs::write(stray, b"left by a crash").unwrap();
    }
    let foreign = home.path().join("notes.txt");
    fs::write(&foreign, b"not the store's").unwrap();
    let store = open(home.path(), options(None), &model);
    let lives = Arc::clone(&model.lives) as Arc<dyn page_store::BlockHistory>;
    let second = PageStore::open(home.path(), options(None), Arc::clone(&lives))
        .err()
        .unwrap();
    assert!(
        second
            .to_string()
            .contains("in use by another storage node"),
        "{second}"
    );
    drop(store);
    let left: Vec<_> = fs::read_dir(home.path())
        .unwrap()
        .map(|entry| name(&entry.unwrap().path()))
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(foreign.exists());
    let nothing = tempfile::tempdir().unwrap();
    let error = PageStore::open(nothing.path(), options(None), lives)
        .err()
        .unwrap();
    assert!(error.to_string().contains("import a cluster"), "{error}");
}
