//! One damaged byte anywhere in the store's files: an error that names the file, or the right
//! page; never a wrong page, never a panic.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use page_store::{BlockHistory, GetPageError, PageStore, StoreOptions, inspect};
use pg_types::{BLCKSZ, Lsn, TimelineId};
use support::{Change, Model, Page, catch_up, filled, identity, key, open};

const BLOCKS: u32 = 4;

fn options() -> StoreOptions {
    StoreOptions {
        cache_bytes: 0,
        image_chain_records: 5,
        ..StoreOptions::default()
    }
}

/// A store with an import, two delta layers, and an image layer from background replay.
fn build(dir: &Path) -> Model {
    PageStore::create(dir, &identity()).unwrap();
    let mut model = Model::default();
    let store = open(dir, options(), &model);
    let mut writer = store.image_writer(Lsn(8)).unwrap();
    for block in 0..BLOCKS - 1 {
        let page = if block == 1 {
            Box::new([0; BLCKSZ])
        } else {
            filled(block as u8)
        };
        writer.add(key(1, block), &page).unwrap();
        model
            .changes
            .push((Lsn(8), key(1, block), Change::Image(page)));
    }
    writer.finish().unwrap();
    store.advance(Lsn(8), Lsn(0), TimelineId(1)).unwrap();
    for round in 1..3u64 {
        for number in 0..10u64 {
            let lsn = Lsn(round * 1000 + number * 8);
            let change = Change::Edit {
                offset: 64 + number as u16 * 30,
                bytes: vec![number as u8 + 1; 25],
            };
            let block = if number < 7 {
                0
            } else {
                number as u32 % BLOCKS
            };
            model.changes.push((lsn, key(1, block), change));
        }
        model.meta.push((
            Lsn(round * 1000 + 80),
            b"size".to_vec(),
            Some(vec![round as u8; 4]),
        ));
        catch_up(&store, &model, Lsn(round * 1000 + 100));
        store.flush().unwrap();
        while store.stats().pages_materialised < round {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    model
}

fn lsns() -> [Lsn; 4] {
    [Lsn(8), Lsn(1100), Lsn(1099), Lsn(2100)]
}

/// Every page at every interesting LSN.
fn expected(model: &Model) -> Vec<Box<Page>> {
    let pages = |lsn| (0..BLOCKS).map(move |block| model.page(key(1, block), lsn));
    lsns().into_iter().flat_map(pages).collect()
}

/// Opens the store and reads everything; counts errors. Any page that is returned must be right.
fn errors(dir: &Path, model: &Model, expected: &[Box<Page>], file: &str) -> u32 {
    let lives = Arc::clone(&model.lives) as Arc<dyn BlockHistory>;
    let store = match PageStore::open(dir, options(), lives) {
        Ok(store) => store,
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(file), "{message}");
            assert!(
                message.contains("restore") || message.contains("release"),
                "{message}"
            );
            return 1;
        }
    };
    let mut errors = 0;
    let mut expected = expected.iter();
    for lsn in lsns() {
        let mut wanted = Vec::new();
        for block in 0..BLOCKS {
            let expected = expected.next().unwrap();
            let mut page = [0; BLCKSZ];
            match store.get_page(key(1, block), lsn, &mut page) {
                Ok(_) => assert!(page == **expected, "block {block} at {lsn} is wrong"),
                Err(error) => {
                    assert!(matches!(error, GetPageError::Corrupt { .. }), "{error:?}");
                    let message = error.to_string();
                    assert!(
                        message.contains(file) && message.contains("offset"),
                        "{message}"
                    );
                    assert!(message.contains(&format!("block {block}")), "{message}");
                    errors += 1;
                }
            }
            wanted.push(expected);
        }
        store.get_pages(key(1, 0), BLOCKS, lsn, |number, result| {
            if let Ok((page, _)) = result {
                assert!(
                    page == &**wanted[number as usize],
                    "block {number} at {lsn} is wrong"
                );
            }
        });
    }
    let mut meta = Vec::new();
    match store.for_each_meta(|key, lsn, value| {
        meta.push((lsn, key.to_vec(), value.map(<[u8]>::to_vec)));
    }) {
        Ok(()) => assert_eq!(meta, model.meta),
        Err(error) => {
            assert!(error.to_string().contains(file), "{error}");
            errors += 1;
        }
    }
    errors
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap() != "lock")
        .collect();
    files.sort();
    files
}

#[test]
fn a_flipped_byte_anywhere_is_an_error_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let model = build(dir.path());
    let expected = expected(&model);
    assert_eq!(errors(dir.path(), &model, &expected, ""), 0);
    let files = files(dir.path());
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let sound = fs::read(&path).unwrap();
        let mut noticed = 0;
        let mut tried = 0;
        let mut at = 0;
        while at < sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            noticed += u32::from(errors(dir.path(), &model, &expected, &name) > 0);
            tried += 1;
            // Every byte of small files and of ends, where headers and indexes are.
            let dense = sound.len() < 2500 || at < 64 || at + 400 > sound.len();
            at += if dense { 1 } else { 61 };
        }
        fs::write(&path, &sound).unwrap();
        // Only the unused bytes between an image layer's header and its first page may go unnoticed.
        let unused = if name.starts_with("image") {
            4096 / 61 + 2
        } else {
            0
        };
        assert!(
            noticed + unused >= tried,
            "{name}: {noticed} of {tried} noticed"
        );
    }
    assert_eq!(errors(dir.path(), &model, &expected, ""), 0);
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let model = build(dir.path());
    let expected = expected(&model);
    for path in files(dir.path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let sound = fs::read(&path).unwrap();
        for part in 0..20 {
            fs::write(&path, &sound[..sound.len() * part / 20]).unwrap();
            assert!(
                errors(dir.path(), &model, &expected, &name) > 0,
                "{name} cut at {part}/20"
            );
        }
        fs::remove_file(&path).unwrap();
        let lives = Arc::clone(&model.lives) as Arc<dyn BlockHistory>;
        let error = PageStore::open(dir.path(), options(), lives)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains(&name) || error.contains("import a cluster"),
            "{error}"
        );
        fs::write(&path, &sound).unwrap();
    }
}

#[test]
fn one_damaged_page_costs_that_page_only() {
    let dir = tempfile::tempdir().unwrap();
    let model = build(dir.path());
    let import = files(dir.path())
        .into_iter()
        .find(|path| path.to_string_lossy().contains("image-0000000000000008"))
        .unwrap();
    let mut bytes = fs::read(&import).unwrap();
    // The second stored page is block 2: block 1 is zeros.
    bytes[4096 + BLCKSZ + 77] ^= 0x10;
    fs::write(&import, bytes).unwrap();
    let store = open(dir.path(), options(), &model);
    let mut read = Vec::new();
    store.get_pages(key(1, 0), BLOCKS, Lsn(8), |number, result| {
        read.push(result.is_ok());
        if let Err(error) = result {
            assert_eq!(number, 2);
            assert!(error.to_string().contains("offset 12288"), "{error}");
        }
    });
    assert_eq!(read, [true, true, false, true]);
    let described = inspect::describe(&import).unwrap();
    assert_eq!(described.damage.len(), 1, "{described:?}");
}

#[test]
fn layers_of_another_cluster_are_refused() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(ours.path());
    let mut other = identity();
    other.system_identifier += 1;
    PageStore::create(theirs.path(), &other).unwrap();
    let model = Model::default();
    {
        let store = open(theirs.path(), options(), &model);
        let mut writer = store.image_writer(Lsn(8)).unwrap();
        writer.add(key(1, 0), &filled(0)).unwrap();
        writer.finish().unwrap();
    }
    let layer = "image-0000000000000008-0000000000000008-00000001.sl";
    fs::copy(ours.path().join(layer), theirs.path().join(layer)).unwrap();
    let lives = Arc::clone(&model.lives) as Arc<dyn BlockHistory>;
    let error = PageStore::open(theirs.path(), options(), lives)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("another cluster") && error.contains(layer),
        "{error}"
    );
}

/// Puts the right checksums over a damaged index, as only a forger or a bug in the writer would.
fn forge(bytes: &mut [u8]) {
    let footer = bytes.len() - 96;
    let field = |at: usize| {
        let at = footer + at;
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
    };
    let (index, len) = (field(56), field(64));
    let crc = crc32c::crc32c(&bytes[index..index + len]);
    bytes[footer + 72..footer + 76].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[footer..footer + 92]);
    bytes[footer + 92..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn an_index_that_lies_under_a_right_checksum_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    let model = build(dir.path());
    let (mut opened, mut refused) = (0, 0);
    for path in files(dir.path()) {
        if path.extension().is_none() {
            continue;
        }
        let sound = fs::read(&path).unwrap();
        let footer = sound.len() - 96;
        let index =
            u64::from_le_bytes(sound[footer + 56..footer + 64].try_into().unwrap()) as usize;
        for at in index..footer {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut forged = sound.clone();
                forged[at] = value;
                forge(&mut forged);
                fs::write(&path, &forged).unwrap();
                drop(inspect::describe(&path));
                let lives = Arc::clone(&model.lives) as Arc<dyn BlockHistory>;
                let Ok(store) = PageStore::open(dir.path(), options(), lives) else {
                    refused += 1;
                    continue;
                };
                opened += 1;
                for lsn in lsns() {
                    store.get_pages(key(1, 0), BLOCKS, lsn, |_, result| drop(result.err()));
                }
                drop(store.for_each_meta(|_, _, _| {}));
            }
        }
        fs::write(&path, &sound).unwrap();
    }
    assert!(
        opened > 100 && refused > 100,
        "{opened} opened, {refused} refused"
    );
}
