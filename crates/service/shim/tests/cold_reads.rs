//! Cold reads without PostgreSQL: on a file system too small for the cache every page must still come,
//! and how fast pages come is printed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Clippy only exempts test functions.

mod page_server;
mod stage;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use shim_abi::builder::MapReader;
use stage::{DB, PAGE, RELS, page, preloaded, stage, word};

const BASE: u32 = 400;
const MEASURED: u32 = 16_384;

fn main() {
    match std::env::var("STAGE_PART").as_deref() {
        Ok("read") => return read_everything(),
        Ok("measure") => return measure(),
        _ => {}
    }
    full_cache_disk();
    let directory = tempfile::tempdir().unwrap();
    let _server = stage(directory.path(), MEASURED, 0);
    assert!(preloaded(directory.path(), "measure"));
}

fn open(file: usize) -> File {
    File::open(format!("base/{DB}/{}", RELS[file])).unwrap()
}

/// Every block of every file, twice; storage's copy of each.
fn read_everything() {
    for _ in 0..2 {
        for (number, rel) in RELS.into_iter().enumerate() {
            let file = open(number);
            for block in 0..BASE {
                let mut bytes = vec![0; PAGE];
                file.read_exact_at(&mut bytes, u64::from(block) * PAGE as u64)
                    .unwrap();
                assert!(bytes == page(rel, block, 1), "{rel} block {block}");
            }
        }
    }
}

/// A file system that is too small for the cache costs speed, not answers.
fn full_cache_disk() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("base");
    fs::create_dir(&base).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&base)
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("full disk: not tried, because mounting a small file system is not permitted");
        return;
    }
    let server = stage(directory.path(), BASE, 0);
    let read = preloaded(directory.path(), "read");
    let statistics = MapReader::open(&directory.path().join("shim.map"))
        .unwrap()
        .statistics();
    println!(
        "full disk: {statistics:?}, {} served",
        server.served.load(Ordering::Relaxed)
    );
    assert!(
        Command::new("umount")
            .arg(&base)
            .status()
            .unwrap()
            .success()
    );
    assert!(read, "reads failed because the cache was full");
    assert!(statistics.fetched > u64::from(BASE) && statistics.present < 150);
}

/// Printed, not judged, because other work may share the machine.
fn measure() {
    let scan = |number: usize, pages: u32| {
        let file = open(number);
        let mut bytes = vec![0; PAGE * pages as usize];
        let began = Instant::now();
        for block in (0..MEASURED).step_by(pages as usize) {
            file.read_exact_at(&mut bytes, u64::from(block) * PAGE as u64)
                .unwrap();
            for (page, block) in bytes.chunks_exact(PAGE).zip(block..) {
                assert_eq!(page[..8], word(RELS[number], block, 1).to_le_bytes());
            }
        }
        f64::from(MEASURED) * PAGE as f64 / 1e6 / began.elapsed().as_secs_f64()
    };
    let by_page = scan(0, 1);
    let by_sixteen = scan(1, 16);
    let warm = scan(0, 1);
    let random = open(2);
    let mut bytes = vec![0; PAGE];
    let mut micros: Vec<f64> = (0..2000u32)
        .map(|turn| {
            let block = turn.wrapping_mul(2_654_435_761) % MEASURED;
            let began = Instant::now();
            random
                .read_exact_at(&mut bytes, u64::from(block) * PAGE as u64)
                .unwrap();
            began.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    println!(
        "speed: cold scan by page {by_page:.0} MB/s, by 16 pages {by_sixteen:.0} MB/s, warm by page \
         {warm:.0} MB/s; single cold page p10 {:.0} us, p50 {:.0} us, p90 {:.0} us",
        micros[200], micros[1000], micros[1800]
    );
}
