//! Many processes read, write, extend, truncate, drop and recreate a few files through the preloaded
//! shim, with a cache far too small and a page server that drops connections mid-batch, delays, answers
//! out of order, asks for patience and sends replies that answer nothing. A model in shared memory says
//! what every block holds: no reader may ever see zeros, another block, an older version than the last
//! one written, or storage's copy of a block that was truncated away.
//!
//! Not under the test harness: the workers are forked, and the harness has threads.

#![allow(unsafe_code)] // fork, shared memory and calls that std does not offer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // It is a test; clippy only exempts test functions.

mod page_server;
mod stage;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use shim_abi::builder::MapReader;
use shim_abi::map::{STATE_MASK, STATE_PRESENT, STATE_WRITTEN};
use stage::{DB, PAGE, RELS, page, preloaded, stage, word};

const BASE: u32 = 400;
const MOST: u32 = 600;
const WORKERS: u32 = 6;

/// What every block holds, shared by the workers.
struct Model {
    /// Number of the next version.
    clock: AtomicU32,
    files: [ModelFile; RELS.len()],
}

struct ModelFile {
    /// Readers, or [`EXCLUSIVE`].
    lock: AtomicU32,
    /// Incarnations of the file.
    generation: AtomicU32,
    blocks: AtomicU32,
    /// Set while a block is being written.
    busy: [AtomicU32; MOST as usize],
    version: [AtomicU32; MOST as usize],
}

const EXCLUSIVE: u32 = 1 << 31;

impl ModelFile {
    fn share(&self) {
        loop {
            let holders = self.lock.load(Ordering::SeqCst);
            if holders & EXCLUSIVE == 0
                && self
                    .lock
                    .compare_exchange(holders, holders + 1, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn unshare(&self) {
        self.lock.fetch_sub(1, Ordering::SeqCst);
    }

    fn exclude(&self) {
        while self
            .lock
            .compare_exchange(0, EXCLUSIVE, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            std::thread::yield_now();
        }
    }

    fn unexclude(&self) {
        self.lock.store(0, Ordering::SeqCst);
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % n.max(1)
    }
}

struct Worker<'a> {
    model: &'a Model,
    directory: PathBuf,
    open: [Option<(u32, File)>; RELS.len()],
    dice: Dice,
    number: u32,
}

impl Worker<'_> {
    fn path(&self, file: usize) -> PathBuf {
        self.directory.join(format!("base/{DB}/{}", RELS[file]))
    }

    /// The file, opened again when another worker recreated it. Called with the file shared or excluded.
    fn file(&mut self, file: usize) -> &File {
        let generation = self.model.files[file].generation.load(Ordering::SeqCst);
        if self.open[file]
            .as_ref()
            .is_none_or(|(opened, _)| *opened != generation)
        {
            let path = self.path(file);
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            self.open[file] = Some((generation, opened));
        }
        &self.open[file].as_ref().unwrap().1
    }

    fn read(&mut self, file: usize) {
        let model = &self.model.files[file];
        model.share();
        let blocks = model.blocks.load(Ordering::SeqCst);
        if blocks > 0 {
            let first = self.dice.below(blocks);
            let count = (1 + self.dice.below(20)).min(blocks - first);
            self.check(file, first, count);
        }
        model.unshare();
    }

    fn scan(&mut self, file: usize) {
        let model = &self.model.files[file];
        model.share();
        let blocks = model.blocks.load(Ordering::SeqCst);
        let first = self.dice.below(blocks);
        for block in first..blocks.min(first + 100) {
            self.check(file, block, 1);
        }
        model.unshare();
    }

    fn check(&mut self, file: usize, first: u32, count: u32) {
        let model = &self.model.files[file];
        let versions = |order| -> Vec<u32> {
            (first..first + count)
                .map(|b| model.version[b as usize].load(order))
                .collect()
        };
        let before = versions(Ordering::SeqCst);
        // Some reads start and end within a page, some use several buffers.
        let skip = if self.dice.below(4) == 0 {
            self.dice.below(1024) as usize * 8
        } else {
            0
        };
        let mut bytes = vec![0xEEu8; count as usize * PAGE - skip];
        let at = u64::from(first) * PAGE as u64 + skip as u64;
        let split = self.dice.below(bytes.len() as u32) as usize;
        let vectored = self.dice.below(2) == 0;
        let number = self.number;
        let handle = self.file(file);
        let got = if vectored {
            let (left, right) = bytes.split_at_mut(split);
            let vectors = [
                libc::iovec {
                    iov_base: left.as_mut_ptr().cast(),
                    iov_len: left.len(),
                },
                libc::iovec {
                    iov_base: right.as_mut_ptr().cast(),
                    iov_len: right.len(),
                },
            ];
            // SAFETY: the vectors describe `bytes`.
            let got = unsafe { libc::preadv(handle.as_raw_fd(), vectors.as_ptr(), 2, at as i64) };
            assert!(got >= 0, "preadv: {}", std::io::Error::last_os_error());
            got as usize
        } else {
            handle.read_at(&mut bytes, at).unwrap()
        };
        assert_eq!(
            got,
            bytes.len(),
            "short read of {first}+{count} in file {file}"
        );
        let now = self.model.clock.load(Ordering::SeqCst);
        for (index, chunk) in bytes.chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(chunk.try_into().unwrap());
            let block = first + ((skip + index * 8) / PAGE) as u32;
            let version = (value & 0xFF_FFFF) as u32;
            let oldest = before[(block - first) as usize];
            assert!(
                value == word(RELS[file], block, version) && version >= oldest && version <= now,
                "worker {number}: file {file} block {block} word {index} is {value:#018x}, \
                 wanted versions {oldest}..={now}"
            );
        }
    }

    /// Writes blocks the caller has to itself; a torn page shows words of two legal versions.
    fn put(&mut self, file: usize, first: u32, count: u32) {
        let version = self.model.clock.fetch_add(1, Ordering::SeqCst) + 1;
        let mut bytes = Vec::new();
        for block in first..first + count {
            bytes.extend(page(RELS[file], block, version));
        }
        let wrote = self
            .file(file)
            .write_at(&bytes, u64::from(first) * PAGE as u64)
            .unwrap();
        assert_eq!(wrote, bytes.len());
        for block in first..first + count {
            self.model.files[file].version[block as usize].store(version, Ordering::SeqCst);
        }
    }

    fn write(&mut self, file: usize) {
        let model = &self.model.files[file];
        model.share();
        let blocks = model.blocks.load(Ordering::SeqCst);
        if blocks > 0 {
            let first = self.dice.below(blocks);
            let wanted = (1 + self.dice.below(6)).min(blocks - first);
            // Some blocks are never written, so that there is something to evict to the end.
            let mine = (first..first + wanted)
                .take_while(|block| *block >= BASE || block % 8 < 5)
                .take_while(|block| model.busy[*block as usize].swap(1, Ordering::SeqCst) == 0)
                .count() as u32;
            if mine > 0 && self.dice.below(5) == 0 {
                self.write_part(file, first);
            } else if mine > 0 {
                self.put(file, first, mine);
            }
            for block in first..first + mine {
                model.busy[block as usize].store(0, Ordering::SeqCst);
            }
        }
        model.unshare();
    }

    /// Rewrites the middle of a block with what it holds: the rest must survive.
    fn write_part(&mut self, file: usize, block: u32) {
        let version = self.model.files[file].version[block as usize].load(Ordering::SeqCst);
        let (from, len) = (
            self.dice.below(512) as usize * 8,
            8 + self.dice.below(500) as usize * 8,
        );
        let bytes = &page(RELS[file], block, version)[from..from + len];
        let at = u64::from(block) * PAGE as u64 + from as u64;
        let wrote = self.file(file).write_at(bytes, at).unwrap();
        assert_eq!(wrote, len);
    }

    fn resize(&mut self, file: usize) {
        let model = &self.model.files[file];
        model.exclude();
        let blocks = model.blocks.load(Ordering::SeqCst);
        match self.dice.below(20) {
            0 => {
                // Drop, and let a new relation take the number.
                self.open[file] = None;
                fs::remove_file(self.path(file)).unwrap();
                File::create_new(self.path(file)).unwrap();
                model.blocks.store(0, Ordering::SeqCst);
                model.generation.fetch_add(1, Ordering::SeqCst);
            }
            1..4 => {
                let keep = blocks - self.dice.below(blocks / 8);
                self.file(file)
                    .set_len(u64::from(keep) * PAGE as u64)
                    .unwrap();
                model.blocks.store(keep, Ordering::SeqCst);
            }
            _ => {
                let add = self.dice.below(12).min(MOST - blocks);
                if add > 0 {
                    self.put(file, blocks, add);
                    model.blocks.store(blocks + add, Ordering::SeqCst);
                }
            }
        }
        model.unexclude();
    }

    fn advise(&mut self, file: usize) {
        let model = &self.model.files[file];
        model.share();
        let blocks = model.blocks.load(Ordering::SeqCst);
        let at = i64::from(self.dice.below(blocks)) * PAGE as i64;
        let len = i64::from(self.dice.below(60)) * PAGE as i64;
        let fd = self.file(file).as_raw_fd();
        // SAFETY: advice has no memory preconditions.
        let failed = unsafe { libc::posix_fadvise(fd, at, len, libc::POSIX_FADV_WILLNEED) };
        assert_eq!(failed, 0);
        model.unshare();
    }

    fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            let file = self.dice.below(RELS.len() as u32) as usize;
            // The first file keeps its size, so that its blocks stay governed to the end.
            match self.dice.below(100) {
                0..60 => self.read(file),
                60..66 => self.scan(file),
                66..90 => self.write(file),
                90..96 => self.advise(file),
                _ if file > 0 => self.resize(file),
                _ => self.read(file),
            }
        }
    }
}

/// The preloaded process: forks the workers and waits for them.
fn work(directory: &Path, seconds: u64) {
    let bytes = size_of::<Model>();
    // SAFETY: a fresh shared mapping of zeros, which is a valid Model.
    let model: &Model = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<Model>()
    };
    model.clock.store(1, Ordering::SeqCst);
    for file in &model.files {
        file.blocks.store(BASE, Ordering::SeqCst);
        for version in &file.version {
            version.store(1, Ordering::SeqCst);
        }
    }
    // A connection made before the fork must not be shared by the children.
    let mut parent = Worker {
        model,
        directory: directory.to_owned(),
        open: [const { None }; RELS.len()],
        dice: Dice(1),
        number: 0,
    };
    parent.check(0, 0, 4);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut children = Vec::new();
    for number in 1..=WORKERS {
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            parent.number = number;
            parent.dice = Dice(u64::from(number) * 7919 + seconds);
            parent.run(until);
            std::process::exit(0);
        }
        children.push(pid);
    }
    let mut failed = false;
    for pid in children {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        failed |= status != 0;
    }
    assert!(!failed, "a worker failed");
    for file in 0..RELS.len() {
        for block in 0..model.files[file].blocks.load(Ordering::SeqCst) {
            parent.check(file, block, 1);
        }
        // For the unpreloaded parent: what each block holds.
        let versions: Vec<String> = (0..model.files[file].blocks.load(Ordering::SeqCst))
            .map(|b| {
                model.files[file].version[b as usize]
                    .load(Ordering::SeqCst)
                    .to_string()
            })
            .collect();
        fs::write(directory.join(format!("model-{file}")), versions.join(" ")).unwrap();
    }
}

fn main() {
    if let Ok(seconds) = std::env::var("STAGE_PART") {
        return work(&std::env::current_dir().unwrap(), seconds.parse().unwrap());
    }
    let seconds: u64 =
        std::env::var("STRANDLINE_STRESS_SECONDS").map_or(6, |text| text.parse().unwrap());
    for (name, limit, faults) in [
        ("calm", 0, false),
        ("evicting", 100, false),
        ("hostile", 60, true),
        ("tiny", 5, true),
    ] {
        stress(name, limit, faults, seconds);
    }
}

fn stress(name: &str, cache_limit: u64, faults: bool, seconds: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = stage(path, BASE, cache_limit);
    if faults {
        server.faults.drop.store(3, Ordering::Relaxed);
        server.faults.delay.store(5, Ordering::Relaxed);
        server.faults.mismatch.store(2, Ordering::Relaxed);
        server.faults.retry.store(2, Ordering::Relaxed);
        server.faults.shuffle.store(true, Ordering::Relaxed);
    }
    let worked = preloaded(path, &seconds.to_string());
    let reader = MapReader::open(&path.join("shim.map")).unwrap();
    let statistics = reader.statistics();
    println!(
        "{name}: {statistics:?}, {} served",
        server.served.load(Ordering::Relaxed)
    );
    assert!(worked, "{name}: the workers failed");
    assert!(
        statistics.fetched > 0 && statistics.hits > 0 && statistics.prefetched > 0
            || cache_limit > 0
    );
    assert_eq!(statistics.waiting, 0, "{name}: nobody waits any more");
    assert_eq!(statistics.errors, 0);
    if cache_limit > 0 {
        assert!(statistics.evicted > 0, "{name}: nothing was evicted");
        assert!(
            statistics.present <= cache_limit + 64,
            "{name}: the limit was not kept"
        );
    }
    if faults {
        assert!(
            statistics.refused > 0 && statistics.reconnects > u64::from(WORKERS),
            "{name}"
        );
        assert!(statistics.refused <= server.mismatches.load(Ordering::Relaxed));
    }
    check_local_files(path, &reader, statistics.present, name);
}

/// The local files, seen without the shim: every block that its word calls here is the model's.
fn check_local_files(path: &Path, reader: &MapReader, present: u64, name: &str) {
    let (mut here, mut written) = (0, 0);
    for (file, rel) in RELS.into_iter().enumerate() {
        let bytes = fs::read(path.join(format!("base/{DB}/{rel}"))).unwrap();
        let versions = fs::read_to_string(path.join(format!("model-{file}"))).unwrap();
        let versions: Vec<u32> = versions
            .split_whitespace()
            .map(|v| v.parse().unwrap())
            .collect();
        assert_eq!(
            bytes.len(),
            versions.len() * PAGE,
            "{name}: size of file {file}"
        );
        for (block, version) in (0u32..).zip(versions) {
            let local = &bytes[block as usize * PAGE..][..PAGE];
            match reader
                .state(1663, DB, rel, 0, block)
                .map(|state| state & STATE_MASK)
            {
                Some(STATE_PRESENT) => {
                    here += 1;
                    assert_eq!(version, 1, "{name}: a written block is only present");
                    assert!(
                        local == page(rel, block, 1),
                        "{name}: file {file} block {block}"
                    );
                }
                None | Some(STATE_WRITTEN) => {
                    written += 1;
                    assert!(
                        local == page(rel, block, version),
                        "{name}: file {file} block {block}"
                    );
                }
                state => assert_eq!((state, version), (Some(0), 1), "{name}: {file}/{block}"),
            }
        }
    }
    assert_eq!(here, present, "{name}: the count of present blocks");
    assert!(written > 0);
}
