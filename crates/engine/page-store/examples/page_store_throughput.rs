//! How fast the page store is on this machine, one thread each: ingestion, reads of materialised
//! pages, replay of chains, and cold sequential reads.
//!
//! `cargo run --release -p page-store --example page_store_throughput [-- SCALE]`; SCALE (default 1)
//! multiplies the amount of data. Prints one JSON object per measurement.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used)]

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use page_store::{BlockHistory, IngestBatch, PageOrigin, PageStore, StoreIdentity, StoreOptions};
use pg_types::{
    BLCKSZ, ForkNumber, Lsn, PageKey, PgMajor, RelFileLocator, SegmentSize, TimelineId,
};
use pg_wal::{MiniRecord, Record, Target};

/// Every block has one life, beginning as zeros.
struct OneLife;

impl BlockHistory for OneLife {
    fn origin(&self, _key: &PageKey, _lsn: Lsn) -> PageOrigin {
        PageOrigin::ONLY
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scale = std::env::args()
        .nth(1)
        .map_or(Ok(1), |scale| scale.parse::<u64>())?;
    ingest(scale, 1000)?;
    ingest(scale, 400_000)?;
    reads()?;
    chains()?;
    scan(scale)?;
    Ok(())
}

fn key(block: u32) -> PageKey {
    let rel = RelFileLocator {
        spc: 1663,
        db: 5,
        rel: 16384,
    };
    PageKey::relation(rel, ForkNumber::Main, block)
}

fn create(dir: &std::path::Path, options: StoreOptions) -> Result<PageStore, Box<dyn Error>> {
    let identity = StoreIdentity {
        system_identifier: 1,
        major: PgMajor::V17,
        segment_size: SegmentSize::DEFAULT,
        data_checksums: false,
    };
    PageStore::create(dir, &identity)?;
    Ok(PageStore::open(dir, options, Arc::new(OneLife))?)
}

/// A mini-record of a generic record that writes a page header and 32 bytes at `at`.
fn mini(key: PageKey, at: u16, byte: u8) -> Vec<u8> {
    let mut data = Vec::new();
    let header = [0x40, 0x1F, 0x40, 0x1F, 0x00, 0x20, 0x04, 0x20];
    for (offset, bytes) in [(12, &header[..]), (at, &[byte; 32][..])] {
        data.extend_from_slice(&u16::to_le_bytes(offset));
        data.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        data.extend_from_slice(bytes);
    }
    let mut record = vec![0; 24];
    record[17] = 20;
    record.extend_from_slice(&[0, 0x20]);
    record.extend_from_slice(&(data.len() as u16).to_le_bytes());
    for field in [key.space, key.db, key.rel, key.block] {
        record.extend_from_slice(&field.to_le_bytes());
    }
    record.extend_from_slice(&data);
    let length = record.len() as u32;
    record[..4].copy_from_slice(&length.to_le_bytes());
    let record = Record::decode(&record, PgMajor::V17).expect("a well-formed record");
    let mut out = Vec::new();
    MiniRecord::encode_from(&record, Target::Block(0), false, false, true, &mut out);
    out
}

/// Ingests mini-records of random blocks in batches of 128 KB, layers being written behind.
fn ingest(scale: u64, blocks: u32) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = create(dir.path(), StoreOptions::default())?;
    let encoded = mini(key(0), 4000, 7);
    let records = 4_000_000 * scale;
    let mut batch = IngestBatch::new();
    let (mut random, mut lsn) = (1u64, 8u64);
    let mut in_calls = Duration::ZERO;
    let started = Instant::now();
    for number in 1..=records {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        lsn += 104;
        let block = (random >> 33) as u32 % blocks;
        batch.mini(key(block), Lsn(lsn), &encoded);
        if batch.bytes() >= 128 << 10 || number == records {
            let called = Instant::now();
            store.ingest(&mut batch)?;
            store.advance(Lsn(lsn), Lsn(lsn - 104), TimelineId(1))?;
            in_calls += called.elapsed();
        }
    }
    let elapsed = started.elapsed();
    store.flush()?;
    let durable = started.elapsed();
    let stats = store.stats();
    let bytes = records * encoded.len() as u64;
    println!(
        "{{\"bench\":\"page_store::ingest/blocks={blocks}\",\"records\":{records},\"record_bytes\":{},\
         \"records_per_s\":{:.0},\"mb_per_s\":{:.0},\"calls_s\":{:.3},\"until_durable_records_per_s\":{:.0},\
         \"delta_layers\":{},\"layer_bytes_per_byte\":{:.2}}}",
        encoded.len(),
        records as f64 / elapsed.as_secs_f64(),
        bytes as f64 / 1e6 / elapsed.as_secs_f64(),
        in_calls.as_secs_f64(),
        records as f64 / durable.as_secs_f64(),
        stats.delta_layers,
        stats.layer_bytes as f64 / bytes as f64,
    );
    Ok(())
}

fn image(block: u32) -> [u8; BLCKSZ] {
    let mut page = [0; BLCKSZ];
    for (at, chunk) in page.chunks_mut(4).enumerate() {
        chunk.copy_from_slice(&(block ^ at as u32).to_le_bytes());
    }
    page
}

fn import(store: &PageStore, blocks: u32) -> Result<(), Box<dyn Error>> {
    let mut writer = store.image_writer(Lsn(8))?;
    for block in 0..blocks {
        writer.add(key(block), &image(block))?;
    }
    writer.finish()?;
    store.advance(Lsn(8), Lsn(0), TimelineId(1))?;
    store.flush()?;
    Ok(())
}

/// Random single reads: of pages that lie in an image layer, and of pages in the cache.
fn reads() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = create(dir.path(), StoreOptions::default())?;
    let blocks = 20_000;
    import(&store, blocks)?;
    measure_reads("image_layer", &store, blocks, Lsn(8), 200_000)?;
    let mut batch = IngestBatch::new();
    for block in 0..blocks {
        batch.mini(
            key(block),
            Lsn(16 + u64::from(block)),
            &mini(key(block), 300, 1),
        );
    }
    store.ingest(&mut batch)?;
    let upto = Lsn(16 + u64::from(blocks));
    store.advance(upto, upto, TimelineId(1))?;
    store.flush()?;
    measure_reads("delta_layer_cold", &store, blocks, upto, 20_000)?;
    measure_reads("page_cache", &store, blocks, upto, 200_000)?;
    Ok(())
}

fn measure_reads(
    what: &str,
    store: &PageStore,
    blocks: u32,
    lsn: Lsn,
    reads: usize,
) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::with_capacity(reads);
    let mut page = [0; BLCKSZ];
    let mut random = 1u64;
    for number in 0..reads as u32 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // The cold pass touches every page once, in a scattered order.
        let block = if what.ends_with("cold") {
            (u64::from(number) * 7919 % u64::from(blocks)) as u32
        } else {
            (random >> 33) as u32 % blocks
        };
        let started = Instant::now();
        store.get_page(key(block), lsn, &mut page)?;
        times.push(started.elapsed().as_nanos() as u64);
        black_box(&page);
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    println!(
        "{{\"bench\":\"page_store::get_page/from={what}\",\"reads\":{reads},\"p50_us\":{:.2},\"p99_us\":{:.2},\"p999_us\":{:.2}}}",
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(())
}

/// Reads whose chains have a given length, from memory and from a delta layer.
fn chains() -> Result<(), Box<dyn Error>> {
    for length in [2u32, 16, 64, 227, 1000] {
        let dir = tempfile::tempdir()?;
        let options = StoreOptions {
            cache_bytes: 0,
            image_chain_records: u32::MAX,
            image_chain_bytes: u32::MAX,
            ..StoreOptions::default()
        };
        let store = create(dir.path(), options)?;
        let blocks = 2000;
        let (mut batch, mut lsn) = (IngestBatch::new(), 8);
        for round in 0..length {
            for block in 0..blocks {
                lsn += 8;
                let at = 300 + (round * 40 % 7000) as u16;
                batch.mini(key(block), Lsn(lsn), &mini(key(block), at, round as u8));
            }
            store.ingest(&mut batch)?;
        }
        store.advance(Lsn(lsn), Lsn(lsn), TimelineId(1))?;
        for flushed in [false, true] {
            if flushed {
                store.flush()?;
            }
            let mut page = [0; BLCKSZ];
            let started = Instant::now();
            for block in 0..blocks {
                store.get_page(key(block), Lsn(lsn), &mut page)?;
                black_box(&page);
            }
            let each = started.elapsed().as_secs_f64() / f64::from(blocks);
            println!(
                "{{\"bench\":\"page_store::replay/chain={length},on_disk={flushed}\",\"page_us\":{:.2},\"records_per_s\":{:.0}}}",
                each * 1e6,
                f64::from(length) / each,
            );
        }
    }
    Ok(())
}

/// Sequential reads of imported pages, 128 at a time.
fn scan(scale: u64) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = create(dir.path(), StoreOptions::default())?;
    let blocks = 131_072 * scale as u32;
    let started = Instant::now();
    import(&store, blocks)?;
    let bytes = f64::from(blocks) * BLCKSZ as f64 / 1e6;
    println!(
        "{{\"bench\":\"page_store::import\",\"mb\":{bytes:.0},\"mb_per_s\":{:.0}}}",
        bytes / started.elapsed().as_secs_f64()
    );
    for pass in ["first", "second"] {
        let started = Instant::now();
        let mut sum = 0u64;
        for first in (0..blocks).step_by(128) {
            store.get_pages(key(first), 128, Lsn(8), |_, result| {
                sum += u64::from(result.expect("a sound page").0[4]);
            });
        }
        black_box(sum);
        println!(
            "{{\"bench\":\"page_store::get_pages/count=128,pass={pass}\",\"mb_per_s\":{:.0}}}",
            bytes / started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
