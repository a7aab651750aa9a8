//! Readers at announced LSNs see exactly those LSNs while ingestion, freezing, writing and
//! background replay go on.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use page_store::{IngestBatch, PageStore, StoreOptions};
use pg_types::{BLCKSZ, Lsn, TimelineId};
use support::{Change, Model, identity, key, open};

const BLOCKS: u64 = 16;
const RECORDS: u64 = 30_000;

/// LSN of record `number`, which changes block `number % BLOCKS`.
fn lsn(number: u64) -> Lsn {
    Lsn(8 + number * 8)
}

/// The number that block `block` must hold when everything up to record `upto` is applied.
fn held(block: u64, upto: u64) -> Option<u64> {
    let back = (upto + BLOCKS - block) % BLOCKS;
    upto.checked_sub(back)
}

#[test]
fn readers_see_whole_states_while_the_store_works() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let options = StoreOptions {
        freeze_bytes: 200_000,
        cache_bytes: 1 << 20,
        image_chain_records: 20,
        ..StoreOptions::default()
    };
    let store = open(dir.path(), options, &Model::default());
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (store, done, reads) = (&store, &done, &reads);
            scope.spawn(move || {
                let mut random = reader + 1;
                let mut page = [0; BLCKSZ];
                while !done.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let Some(newest) = store.applied().0.checked_sub(8).map(|at| at / 8) else {
                        continue;
                    };
                    let upto = newest - (random >> 40) % (newest + 1).min(3000);
                    let block = (random >> 20) % BLOCKS;
                    store
                        .get_page(key(1, block as u32), lsn(upto), &mut page)
                        .unwrap();
                    let number = u64::from_le_bytes(page[64..72].try_into().unwrap());
                    assert_eq!(number, held(block, upto).unwrap_or(0), "{block} at {upto}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut batch = IngestBatch::new();
        for number in 0..RECORDS {
            let change = Change::Edit {
                offset: 64,
                bytes: number.to_le_bytes().to_vec(),
            };
            change.put(key(1, (number % BLOCKS) as u32), lsn(number), &mut batch);
            if number % 37 == 36 || number + 1 == RECORDS {
                store.ingest(&mut batch).unwrap();
                store
                    .advance(lsn(number), lsn(number), TimelineId(1))
                    .unwrap();
            }
        }
        let waited = store.wait_applied(lsn(RECORDS - 1), Duration::from_secs(1));
        waited.unwrap();
        store.flush().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    let stats = store.stats();
    assert!(reads.load(Ordering::Relaxed) > 1000);
    assert!(
        stats.delta_layers > 5 && stats.image_layers > 0,
        "{stats:?}"
    );
    assert!(stats.error.is_none(), "{stats:?}");
}

#[test]
fn waiting_for_an_lsn_ends_when_it_comes_or_when_the_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    PageStore::create(dir.path(), &identity()).unwrap();
    let store = open(dir.path(), StoreOptions::default(), &Model::default());
    let error = store
        .wait_applied(Lsn(8), Duration::from_millis(20))
        .unwrap_err()
        .to_string();
    assert!(error.contains("only up to 0/0"), "{error}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait_applied(Lsn(800), Duration::from_secs(60)));
        for upto in 1..=100 {
            store
                .advance(Lsn(upto * 8), Lsn(upto * 8 - 8), TimelineId(1))
                .unwrap();
        }
        waiting.join().unwrap().unwrap();
    });
    // A flush without changes moves the watermark too: those records changed no page.
    assert_eq!(store.flush().unwrap().lsn, Lsn(800));
    drop(store);
    assert_eq!(
        open(dir.path(), StoreOptions::default(), &Model::default()).applied(),
        Lsn(800)
    );
}
