//! A layer in memory: the version map of what has not reached a file yet.
//!
//! **Structure.** Every ingested batch's bytes become one immutable chunk; each key has the list of
//! its versions in LSN order, each naming a piece of a chunk. Keys are spread over shards by hash,
//! each behind its own lock.
//!
//! **Readers and the writer.** The writer publishes a batch shard by shard and holds each shard's
//! lock for the insertions of that shard only. A reader holds one shard's lock while it copies the
//! list of one key (24 bytes a version), and the chunk table's lock while it copies the bytes; it
//! never replays under a lock. A reader may see part of a batch, but never needs to: it reads at
//! LSNs that were announced as applied, and those batches are complete.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use pg_types::{Lsn, PageKey};
use smallvec::SmallVec;

use crate::batch::{BatchMeta, BatchPage, IngestBatch, MetaVisitor};
use crate::chain::Chain;
use crate::entry::EntryKind;
use crate::key_hash::{self, BuildPageKeyHasher};

const SHARDS: usize = 64;

/// Estimated bytes of bookkeeping per version, for the freeze threshold.
const VERSION_OVERHEAD: u64 = 24;
/// Estimated bytes of bookkeeping per key.
const KEY_OVERHEAD: u64 = 100;

/// Versions in memory with LSNs above `start`.
pub(crate) struct MemLayer {
    start: Lsn,
    shards: Vec<RwLock<Shard>>,
    chunks: RwLock<Vec<Arc<[u8]>>>,
    meta: RwLock<BTreeMap<Box<[u8]>, Vec<MetaVersion>>>,
    bytes: AtomicU64,
    versions: AtomicU64,
}

type Versions = SmallVec<[Version; 2]>;

#[derive(Default)]
struct Shard {
    keys: HashMap<PageKey, Versions, BuildPageKeyHasher>,
}

/// One version of a page and where its bytes are.
#[derive(Clone, Copy)]
pub(crate) struct Version {
    pub(crate) lsn: Lsn,
    chunk: u32,
    offset: u32,
    len: u32,
    pub(crate) kind: EntryKind,
}

/// One version of a metadata entry.
#[derive(Clone)]
pub(crate) struct MetaVersion {
    pub(crate) lsn: Lsn,
    pub(crate) value: Option<Box<[u8]>>,
}

impl MemLayer {
    /// An empty layer for versions above `start`.
    pub(crate) fn new(start: Lsn) -> MemLayer {
        MemLayer {
            start,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            chunks: RwLock::default(),
            meta: RwLock::default(),
            bytes: AtomicU64::new(0),
            versions: AtomicU64::new(0),
        }
    }

    /// Everything at or below this LSN is in older layers.
    pub(crate) fn start(&self) -> Lsn {
        self.start
    }

    /// Bytes of memory, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Versions of pages and metadata.
    pub(crate) fn versions(&self) -> u64 {
        self.versions.load(Ordering::Relaxed)
    }

    /// Adds a batch, whose LSNs are not below any already here. Its bytes must number less than
    /// 2³², and there must be fewer than 2³² batches in a layer; the store checks both.
    pub(crate) fn insert(&self, batch: &mut IngestBatch, scratch: &mut ShardScratch) {
        let mut added = 0u64;
        let versions = batch.len() as u64;
        if !batch.pages.is_empty() {
            let chunk = {
                let mut chunks = self.chunks.write();
                chunks.push(Arc::from(batch.data.as_slice()));
                chunks.len() as u32 - 1
            };
            added += batch.data.len() as u64;
            scratch.spread(&batch.pages);
            for (shard, pages) in self.shards.iter().zip(&mut scratch.shards) {
                if pages.is_empty() {
                    continue;
                }
                let mut shard = shard.write();
                for page in pages.drain(..) {
                    added += shard.insert(&page, chunk);
                }
            }
        }
        if !batch.meta.is_empty() {
            added += self.insert_meta(&mut batch.meta);
        }
        self.bytes.fetch_add(added, Ordering::Relaxed);
        self.versions.fetch_add(versions, Ordering::Relaxed);
    }

    fn insert_meta(&self, entries: &mut Vec<BatchMeta>) -> u64 {
        let mut added = 0;
        let mut meta = self.meta.write();
        for BatchMeta { key, lsn, value } in entries.drain(..) {
            added += VERSION_OVERHEAD
                + KEY_OVERHEAD
                + key.len() as u64
                + value.as_ref().map_or(0, |value| value.len() as u64);
            meta.entry(key)
                .or_default()
                .push(MetaVersion { lsn, value });
        }
        added
    }

    /// Adds to `chain` the versions of `key` in `(above, upto]`, beginning with the last of them that
    /// needs no earlier one. Returns whether there was such a one.
    pub(crate) fn collect(&self, key: &PageKey, above: Lsn, upto: Lsn, chain: &mut Chain) -> bool {
        let mut found: SmallVec<[Version; 16]> = SmallVec::new();
        {
            let Some(shard) = self.shard(key) else {
                return false;
            };
            let shard = shard.read();
            let Some(versions) = shard.keys.get(key) else {
                return false;
            };
            for version in versions.iter().rev() {
                if version.lsn <= above {
                    break;
                }
                if version.lsn <= upto {
                    found.push(*version);
                    if version.kind.is_base() {
                        break;
                    }
                }
            }
        }
        let based = found.last().is_some_and(|version| version.kind.is_base());
        let chunks = self.chunks.read();
        for version in found.iter().rev() {
            chain.push(version.lsn, version.kind, piece(&chunks, version));
        }
        based
    }

    /// Whether `key` has a version in `(above, upto]`.
    pub(crate) fn touches(&self, key: &PageKey, above: Lsn, upto: Lsn) -> bool {
        let Some(shard) = self.shard(key) else {
            return false;
        };
        let shard = shard.read();
        let Some(versions) = shard.keys.get(key) else {
            return false;
        };
        let mut newest_first = versions
            .iter()
            .rev()
            .skip_while(|version| version.lsn > upto);
        newest_first
            .next()
            .is_some_and(|version| version.lsn > above)
    }

    /// Every page key with its versions, sorted by key; for writing the layer to a file, when
    /// nothing is added any more.
    pub(crate) fn sorted_pages(&self) -> Vec<(PageKey, Versions)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            all.extend(
                shard
                    .keys
                    .iter()
                    .map(|(key, versions)| (*key, versions.clone())),
            );
        }
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// Calls `visit` with the bytes of a version that this layer handed out.
    pub(crate) fn chunks(&self) -> Vec<Arc<[u8]>> {
        self.chunks.read().clone()
    }

    /// Metadata versions in order of key, then LSN.
    pub(crate) fn for_each_meta(&self, visit: &mut MetaVisitor<'_>) {
        for (key, versions) in self.meta.read().iter() {
            for version in versions {
                visit(key, version.lsn, version.value.as_deref());
            }
        }
    }

    fn shard(&self, key: &PageKey) -> Option<&RwLock<Shard>> {
        self.shards.get(shard_of(key))
    }
}

/// The bytes of a version, given its layer's chunks; empty for a version of another layer.
pub(crate) fn piece<'a>(chunks: &'a [Arc<[u8]>], version: &Version) -> &'a [u8] {
    let start = version.offset as usize;
    chunks
        .get(version.chunk as usize)
        .and_then(|chunk| chunk.get(start..start + version.len as usize))
        .unwrap_or_default()
}

impl Shard {
    /// Returns the bytes of memory it took, besides the page's bytes.
    fn insert(&mut self, page: &BatchPage, chunk: u32) -> u64 {
        let version = Version {
            lsn: page.lsn,
            chunk,
            offset: page.offset as u32,
            len: page.len as u32,
            kind: page.kind,
        };
        let versions = self.keys.entry(page.key).or_default();
        let new_key = if versions.is_empty() { KEY_OVERHEAD } else { 0 };
        versions.push(version);
        VERSION_OVERHEAD + new_key
    }
}

fn shard_of(key: &PageKey) -> usize {
    (key_hash::hash(key) >> 40) as usize % SHARDS
}

/// The writer's memory for spreading a batch over shards.
pub(crate) struct ShardScratch {
    shards: Vec<Vec<BatchPage>>,
}

impl ShardScratch {
    /// Empty scratch memory.
    pub(crate) fn new() -> ShardScratch {
        ShardScratch {
            shards: (0..SHARDS).map(|_| Vec::new()).collect(),
        }
    }

    fn spread(&mut self, pages: &[BatchPage]) {
        for page in pages {
            if let Some(shard) = self.shards.get_mut(shard_of(&page.key)) {
                shard.push(*page);
            }
        }
    }
}
