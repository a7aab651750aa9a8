//! Stores written by format version 1 must be readable for ever.
//!
//! `tests/fixtures/v1` is a tiny store. A store made the same way today must consist of the same
//! bytes: a difference means that the format changed, and then the version must change and the old
//! fixture stays. `STRANDLINE_BLESS=1` writes the fixture. `v1-corrupt` is the same store with one
//! damaged block in its delta layer.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use page_store::inspect::{self, LayerContent};
use page_store::{BlockHistory, IngestBatch, LayerKind, PageStore, StoreOptions};
use pg_types::{BLCKSZ, Lsn, PageKey, Slru, TimelineId};
use support::{Change, Model, Page, identity, key, open};

const DELTA: &str = "delta-0000000000000000-00000000010000C8-00000002.sl";
const IMAGE: &str = "image-0000000001000028-0000000001000028-00000001.sl";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn clog() -> PageKey {
    PageKey::slru(Slru::Clog, 0)
}

/// A page that compresses well in a repository.
fn page(byte: u8) -> Box<Page> {
    let mut page = Box::new([0; BLCKSZ]);
    page[100..120].fill(byte);
    page
}

/// What the fixture holds, and writing it to `dir`.
fn build(dir: &Path) -> Model {
    PageStore::create(dir, &identity()).unwrap();
    let mut model = Model::default();
    let store = open(dir, StoreOptions::default(), &model);
    let base = Lsn(0x0100_0028);
    let mut writer = store.image_writer(base).unwrap();
    for (key, page) in [
        (key(1, 0), page(1)),
        (key(1, 1), page(0)),
        (clog(), page(2)),
    ] {
        writer.add(key, &page).unwrap();
        model.changes.push((base, key, Change::Image(page)));
    }
    writer.finish().unwrap();
    let mut batch = IngestBatch::new();
    let edit = |byte| Change::Edit {
        offset: 200,
        bytes: vec![byte; 3],
    };
    let changes = [
        (key(1, 0), edit(7)),
        (
            key(1, 3),
            Change::Init {
                offset: 24,
                bytes: vec![9; 4],
            },
        ),
        (key(1, 0), edit(8)),
        (key(1, 2), Change::Image(page(0))),
    ];
    for (number, (key, change)) in (0u64..).zip(changes) {
        let lsn = Lsn(base.0 + 40 + number * 8);
        change.put(key, lsn, &mut batch);
        model.changes.push((lsn, key, change));
    }
    for (at, value) in [(80u64, Some(b"four".to_vec())), (88, None)] {
        let lsn = Lsn(base.0 + at);
        batch.meta(b"size", lsn, value.as_deref());
        model.meta.push((lsn, b"size".to_vec(), value));
    }
    store.ingest(&mut batch).unwrap();
    store
        .advance(end(), Lsn(end().0 - 40), TimelineId(3))
        .unwrap();
    store.flush().unwrap();
    model
}

fn end() -> Lsn {
    Lsn(0x0100_00C8)
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                fs::read(&path).unwrap(),
            )
        })
        .filter(|(name, _)| name != "lock")
        .collect()
}

/// A copy to open, because opening writes a lock file.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files(&fixture(name)) {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

#[test]
fn todays_store_has_the_bytes_of_version_one() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    let today = files(dir.path());
    if std::env::var_os("STRANDLINE_BLESS").is_some() {
        for (name, damage) in [("v1", false), ("v1-corrupt", true)] {
            fs::create_dir_all(fixture(name)).unwrap();
            for (file, bytes) in &today {
                let mut bytes = bytes.clone();
                if damage && file == DELTA {
                    bytes[200] ^= 0x40;
                }
                fs::write(fixture(name).join(file), bytes).unwrap();
            }
        }
    }
    assert_eq!(
        today.keys().map(String::as_str).collect::<Vec<_>>(),
        [DELTA, IMAGE, "manifest"]
    );
    assert!(
        today == files(&fixture("v1")),
        "the format changed; see this file's head"
    );
}

#[test]
fn version_one_reads_as_it_was_written() {
    let dir = copy("v1");
    let scratch = tempfile::tempdir().unwrap();
    let model = build(scratch.path());
    let store = open(dir.path(), StoreOptions::default(), &model);
    assert_eq!(store.identity(), &identity());
    let watermark = store.disk_consistent();
    assert_eq!((watermark.lsn, watermark.timeline), (end(), TimelineId(3)));
    assert_eq!(store.oldest(), Lsn(0x0100_0028));
    for lsn in [store.oldest(), Lsn(0x0100_0050), end()] {
        for key in [
            key(1, 0),
            key(1, 1),
            key(1, 2),
            key(1, 3),
            key(1, 4),
            clog(),
        ] {
            support::assert_page(&store, &model, key, lsn);
        }
    }
    assert_eq!(support::stored_meta(&store), model.meta_upto(end()));
}

#[test]
fn the_damaged_store_opens_and_refuses_what_it_lost() {
    let dir = copy("v1-corrupt");
    let scratch = tempfile::tempdir().unwrap();
    let model = build(scratch.path());
    let lives = Arc::clone(&model.lives) as Arc<dyn BlockHistory>;
    let store = PageStore::open(dir.path(), StoreOptions::default(), lives).unwrap();
    let mut page = [0; BLCKSZ];
    let error = store
        .get_page(key(1, 0), end(), &mut page)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(DELTA) && error.contains("checksum") && error.contains("restore"),
        "{error}"
    );
    support::assert_page(&store, &model, key(1, 0), store.oldest());
    support::assert_page(&store, &model, clog(), end());
}

#[test]
fn descriptions_say_what_is_in_the_files() {
    let delta = inspect::describe(&fixture("v1").join(DELTA)).unwrap();
    assert_eq!(
        (delta.kind, delta.pages, delta.entries),
        (LayerKind::Delta, 3, 6)
    );
    assert_eq!((delta.start, delta.end), (Lsn(0), end()));
    let LayerContent::Delta {
        blocks,
        metadata,
        longest_chain,
        longest_chain_page,
    } = &delta.content
    else {
        panic!("{delta:?}");
    };
    assert_eq!((*blocks, *metadata, *longest_chain), (2, 2, 2));
    assert_eq!(longest_chain_page.as_deref(), Some("1663/5/1 block 0"));
    assert_eq!(delta.damage, Vec::<String>::new());
    let image = inspect::describe(&fixture("v1").join(IMAGE)).unwrap();
    assert_eq!(
        image.content,
        LayerContent::Image {
            runs: 3,
            stored: 2,
            zero: 1
        }
    );
    let names: Vec<_> = image
        .forks
        .iter()
        .map(|fork| (fork.name.as_str(), fork.pages))
        .collect();
    assert_eq!(names, [("pg_xact", 1), ("1663/5/1", 2)]);
    let damaged = inspect::describe(&fixture("v1-corrupt").join(DELTA)).unwrap();
    assert_eq!(damaged.damage.len(), 1, "{damaged:?}");
    let manifest = inspect::describe_manifest(&fixture("v1")).unwrap();
    assert_eq!(manifest.layers, [IMAGE, DELTA]);
    assert_eq!(manifest.disk_consistent.lsn, end());
    assert!(inspect::describe(&fixture("v1").join("manifest")).is_err());
}
