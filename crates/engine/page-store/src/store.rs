//! The store as its users see it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use pg_types::{BLCKSZ, Lsn, PageKey, TimelineId};

use crate::background;
use crate::batch::{IngestBatch, MAX_META_KEY};
use crate::disk::Disk;
use crate::error::{
    CreateError, FlushError, GetPageError, ImageWriteError, IngestError, OpenError, WaitError,
};
use crate::history::BlockHistory;
use crate::identity::{StoreIdentity, Watermark};
use crate::image_writer::ImageLayerWriter;
use crate::mem_layer::ShardScratch;
use crate::open;
use crate::options::StoreOptions;
use crate::page_cache::PageCache;
use crate::poison::Poison;
use crate::progress::Progress;
use crate::read::PageInfo;
use crate::shared::{IngestState, Shared};
use crate::stats::{Counters, StoreStats};

/// Most bytes of one batch; offsets into it are 32 bits wide.
const MAX_BATCH_BYTES: usize = 1 << 30;
/// How long `flush` waits for the writer to announce a batch that it has ingested.
const UNFINISHED_LIMIT: Duration = Duration::from_secs(10);

/// A versioned store of pages and metadata: key → LSN → value.
///
/// One thread ingests; any number read. Closing (dropping) it does not flush: what was not in a
/// layer file comes again from the log.
pub struct PageStore {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl PageStore {
    /// Creates an empty store in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// [`CreateError`] when there is one already or the disk refuses.
    pub fn create(dir: &Path, identity: &StoreIdentity) -> Result<(), CreateError> {
        open::create(dir, identity)
    }

    /// Opens the store in `dir`: checks the manifest and the frame of every layer file, and removes
    /// files that no manifest lists, which a crash left behind.
    ///
    /// `history` is asked from the first [`PageStore::get_page`] on, and by background replay from
    /// the first layer written on; it may be filled (by [`PageStore::for_each_meta`]) before that.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and the remedy.
    pub fn open(
        dir: &Path,
        options: StoreOptions,
        history: Arc<dyn BlockHistory>,
    ) -> Result<PageStore, OpenError> {
        let disk = Disk::new(options.faults.clone());
        let opened = open::open(dir, &disk)?;
        let manifest = opened.manifest;
        let durable = manifest.disk_consistent;
        let ingest = IngestState {
            last: durable.lsn,
            frozen_upto: durable.lsn,
            scratch: ShardScratch::new(),
        };
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            disk,
            identity: manifest.identity,
            cache: PageCache::new(options.cache_bytes),
            options,
            history,
            layers: RwLock::new(Arc::new(opened.layers)),
            ingest: Mutex::new(ingest),
            progress: Progress::new(durable),
            oldest: AtomicU64::new(manifest.oldest.0),
            manifest: Mutex::new(manifest),
            poison: Poison::default(),
            counters: Counters::default(),
            _lock: opened.lock,
        });
        let threads = background::start(&shared)?;
        Ok(PageStore { shared, threads })
    }

    /// Whose pages these are.
    #[must_use]
    pub fn identity(&self) -> &StoreIdentity {
        &self.shared.identity
    }

    /// Takes a batch of changes and empties it. Their LSNs must be above [`PageStore::applied`] and
    /// must not fall; nobody reads at them before [`PageStore::advance`].
    ///
    /// # Errors
    /// [`IngestError`]; nothing of the batch was taken then.
    pub fn ingest(&self, batch: &mut IngestBatch) -> Result<(), IngestError> {
        let mut ingest = self.shared.ingest.lock();
        self.check_poison()?;
        let Some((first, last)) = batch.lsn_range() else {
            return Ok(());
        };
        if let Some(lsn) = batch.unordered {
            return Err(IngestError::OutOfOrder { lsn, last });
        }
        let applied = self.shared.progress.applied();
        if first <= applied {
            return Err(IngestError::AlreadyApplied {
                lsn: first,
                applied,
            });
        }
        if first < ingest.last {
            return Err(IngestError::OutOfOrder {
                lsn: first,
                last: ingest.last,
            });
        }
        if batch.bytes() > MAX_BATCH_BYTES {
            return Err(IngestError::BatchTooLarge {
                bytes: batch.bytes(),
            });
        }
        if let Some(meta) = batch.meta.iter().find(|meta| meta.key.len() > MAX_META_KEY) {
            return Err(IngestError::MetaKeyTooLong {
                len: meta.key.len(),
                lsn: meta.lsn,
            });
        }
        let changes = batch.len() as u64;
        self.shared.layers().open.insert(batch, &mut ingest.scratch);
        self.shared
            .counters
            .changes_ingested
            .fetch_add(changes, Ordering::Relaxed);
        ingest.last = last;
        batch.clear();
        Ok(())
    }

    /// Announces that everything up to `applied`, the end of a whole record, is ingested: readers may
    /// read there. Freezes the open layer when it is large enough, and then waits while too many
    /// frozen layers are unwritten.
    ///
    /// # Errors
    /// [`IngestError`] when it would go back, or when an earlier write failed.
    pub fn advance(
        &self,
        applied: Lsn,
        last_record: Lsn,
        timeline: TimelineId,
    ) -> Result<(), IngestError> {
        let mut ingest = self.shared.ingest.lock();
        self.check_poison()?;
        if applied < ingest.last {
            return Err(IngestError::AdvanceBelow {
                lsn: applied,
                last: ingest.last,
            });
        }
        ingest.last = applied;
        let watermark = Watermark {
            lsn: applied,
            last_record,
            timeline,
        };
        self.shared.progress.set_applied(watermark);
        if self.shared.layers().open.bytes() >= self.shared.options.freeze_bytes {
            self.shared.freeze(&mut ingest, watermark);
            self.check_poison()?;
        }
        Ok(())
    }

    fn check_poison(&self) -> Result<(), IngestError> {
        self.shared
            .poison
            .get()
            .map_or(Ok(()), |error| Err(IngestError::Poisoned(error)))
    }

    /// Everything at or below is ingested and can be read.
    #[must_use]
    pub fn applied(&self) -> Lsn {
        self.shared.progress.applied()
    }

    /// [`PageStore::applied`] with its record and timeline.
    #[must_use]
    pub fn applied_watermark(&self) -> Watermark {
        self.shared.progress.lock().applied
    }

    /// Where ingestion resumes after a restart: everything at or below is in layer files.
    #[must_use]
    pub fn disk_consistent(&self) -> Watermark {
        self.shared.progress.lock().durable
    }

    /// Oldest LSN that can be read.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        Lsn(self.shared.oldest.load(Ordering::Acquire))
    }

    /// Waits until everything up to `lsn` is ingested.
    ///
    /// # Errors
    /// [`WaitError`] after `timeout`, or at once when ingestion has ended.
    pub fn wait_applied(&self, lsn: Lsn, timeout: Duration) -> Result<(), WaitError> {
        let shared = &self.shared;
        if shared.progress.applied() >= lsn {
            return Ok(());
        }
        let deadline = Instant::now().checked_add(timeout);
        let ended = shared.progress.wait_until(deadline, |state| {
            state.applied.lsn >= lsn || shared.poison.get().is_some()
        });
        let applied = shared.progress.applied();
        if applied >= lsn {
            return Ok(());
        }
        match shared.poison.get().filter(|_| ended) {
            Some(cause) => Err(WaitError::Poisoned {
                wanted: lsn,
                applied,
                cause,
            }),
            None => Err(WaitError::Timeout {
                wanted: lsn,
                applied,
                waited: timeout,
            }),
        }
    }

    /// The page `key` as of `lsn`, which must be ingested (see [`PageStore::wait_applied`]).
    ///
    /// # Errors
    /// [`GetPageError`]; `page` then holds nothing of use.
    pub fn get_page(
        &self,
        key: PageKey,
        lsn: Lsn,
        page: &mut [u8; BLCKSZ],
    ) -> Result<PageInfo, GetPageError> {
        let layers = self.shared.readable(key, lsn)?;
        self.shared.read_page(&layers, key, lsn, page, true)
    }

    /// The pages of `count` blocks from `first` on, as of `lsn`; calls `sink` once for each block, in
    /// order, with its number from 0 and the page. Neighbours that lie in an image layer and have no
    /// changes since are read at once.
    pub fn get_pages(
        &self,
        first: PageKey,
        count: u32,
        lsn: Lsn,
        mut sink: impl FnMut(u32, Result<(&[u8; BLCKSZ], PageInfo), GetPageError>),
    ) {
        self.shared.read_pages(first, count, lsn, &mut sink);
    }

    /// Every version of every metadata entry, for each key in LSN order.
    /// Versions that were ingested but not announced yet are among them.
    ///
    /// # Errors
    /// [`OpenError`] when a layer file is damaged.
    pub fn for_each_meta(
        &self,
        mut visit: impl FnMut(&[u8], Lsn, Option<&[u8]>),
    ) -> Result<(), OpenError> {
        let layers = self.shared.layers();
        for delta in &layers.deltas {
            delta.for_each_meta(&mut visit)?;
        }
        for frozen in &layers.frozen {
            frozen.layer.for_each_meta(&mut visit);
        }
        layers.open.for_each_meta(&mut visit);
        Ok(())
    }

    /// Begins to add whole pages as of `lsn`, before anything is ingested: import. `lsn` becomes the
    /// oldest LSN that can be read.
    ///
    /// # Errors
    /// [`ImageWriteError`] when changes have been ingested already.
    pub fn image_writer(&self, lsn: Lsn) -> Result<ImageLayerWriter, ImageWriteError> {
        let applied = self.applied();
        if applied > lsn {
            return Err(ImageWriteError::AlreadyApplied { lsn, applied });
        }
        if let Some(error) = self.shared.poison.get() {
            return Err(ImageWriteError::Poisoned(error));
        }
        Ok(ImageLayerWriter::new(Arc::clone(&self.shared), lsn, true))
    }

    /// Makes everything announced by [`PageStore::advance`] durable, and waits for it. May be called
    /// by any thread.
    ///
    /// # Errors
    /// [`FlushError`] when a write failed.
    pub fn flush(&self) -> Result<Watermark, FlushError> {
        let target = self.freeze_announced()?;
        let shared = &self.shared;
        shared.progress.wait_until(None, |state| {
            state.durable.lsn >= target || shared.poison.get().is_some() || state.closing
        });
        let durable = self.disk_consistent();
        if durable.lsn >= target {
            return Ok(durable);
        }
        Err(shared
            .poison
            .get()
            .map_or(FlushError::Closing, FlushError::Poisoned))
    }

    /// Freezes the open layer unless there is nothing new. Returns up to where it goes.
    fn freeze_announced(&self) -> Result<Lsn, FlushError> {
        let deadline = Instant::now() + UNFINISHED_LIMIT;
        loop {
            if let Some(error) = self.shared.poison.get() {
                return Err(FlushError::Poisoned(error));
            }
            let ingested = {
                let mut ingest = self.shared.ingest.lock();
                let applied = self.shared.progress.lock().applied;
                if ingest.last <= applied.lsn {
                    if ingest.frozen_upto < applied.lsn {
                        self.shared.freeze(&mut ingest, applied);
                    }
                    return Ok(applied.lsn);
                }
                ingest.last
            };
            // The writer is between `ingest` and `advance`: a layer cut here would lack changes of
            // the LSNs it claims to cover.
            if Instant::now() >= deadline {
                return Err(FlushError::Unfinished {
                    ingested,
                    applied: self.applied(),
                });
            }
            let soon = Instant::now() + Duration::from_millis(20);
            self.shared
                .progress
                .wait_until(Some(soon), |state| state.applied.lsn >= ingested);
        }
    }

    /// Numbers about the store.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let layers = self.shared.layers();
        let counters = &self.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            applied: self.applied_watermark(),
            disk_consistent: self.disk_consistent(),
            oldest: self.oldest(),
            open_layer_bytes: layers.open.bytes(),
            open_layer_versions: layers.open.versions(),
            frozen_layers: layers.frozen.len() as u64,
            delta_layers: layers.deltas.len() as u64,
            image_layers: layers.images.len() as u64,
            layer_bytes: layers.file_bytes(),
            changes_ingested: load(&counters.changes_ingested),
            pages_read: load(&counters.pages_read),
            cache_hits: load(&counters.cache_hits),
            changes_replayed: load(&counters.changes_replayed),
            longest_chain: load(&counters.longest_chain),
            pages_materialised: load(&counters.pages_materialised),
            error: self.shared.poison.get().map(|error| error.to_string()),
        }
    }
}

impl Drop for PageStore {
    fn drop(&mut self) {
        self.shared.progress.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has poisoned the store already.
            let _ = thread.join();
        }
    }
}
