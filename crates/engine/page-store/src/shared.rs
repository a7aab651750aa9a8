//! What the store's callers and its threads share, and how layers and manifest are changed.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use pg_types::Lsn;

use crate::delta_layer::DeltaLayer;
use crate::delta_writer::write_delta;
use crate::disk::Disk;
use crate::error::{DiskError, OpenError};
use crate::history::BlockHistory;
use crate::identity::{StoreIdentity, Watermark};
use crate::image_layer::ImageLayer;
use crate::layer_file::LayerName;
use crate::layer_set::{FrozenLayer, LayerSet};
use crate::manifest::{Manifest, ManifestLayer};
use crate::mem_layer::ShardScratch;
use crate::options::StoreOptions;
use crate::page_cache::PageCache;
use crate::poison::Poison;
use crate::progress::Progress;
use crate::stats::Counters;

/// A store's state.
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) disk: Disk,
    pub(crate) identity: StoreIdentity,
    pub(crate) options: StoreOptions,
    pub(crate) history: Arc<dyn BlockHistory>,
    pub(crate) layers: RwLock<Arc<LayerSet>>,
    /// Held by whoever ingests, announces or freezes.
    pub(crate) ingest: Mutex<IngestState>,
    pub(crate) progress: Progress,
    /// LSN below which nothing can be read.
    pub(crate) oldest: AtomicU64,
    /// The manifest as it is on disk; held while it is replaced.
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) poison: Poison,
    pub(crate) cache: PageCache,
    pub(crate) counters: Counters,
    /// The directory's lock.
    pub(crate) _lock: File,
}

/// The writer's state.
pub(crate) struct IngestState {
    /// Highest LSN ingested or announced.
    pub(crate) last: Lsn,
    /// Up to where the newest frozen layer goes.
    pub(crate) frozen_upto: Lsn,
    pub(crate) scratch: ShardScratch,
}

impl Shared {
    /// The layers now.
    pub(crate) fn layers(&self) -> Arc<LayerSet> {
        Arc::clone(&self.layers.read())
    }

    /// Puts a changed set in place of the layers.
    pub(crate) fn change_layers(&self, change: impl FnOnce(&mut LayerSet)) {
        let mut layers = self.layers.write();
        let mut changed = LayerSet::clone(&layers);
        change(&mut changed);
        *layers = Arc::new(changed);
    }

    /// The first write failure ends ingestion and wakes everyone who waits for more.
    pub(crate) fn fail(&self, error: DiskError) -> Arc<DiskError> {
        let error = Arc::new(error);
        self.poison.set(Arc::clone(&error));
        self.progress.wake();
        error
    }

    /// A number for a new layer file. Numbers of files that were never listed are used again only
    /// after the store was opened anew, which removes such files.
    pub(crate) fn take_seq(&self) -> u32 {
        let mut manifest = self.manifest.lock();
        let seq = manifest.next_seq;
        manifest.next_seq = seq.saturating_add(1);
        seq
    }

    /// Makes new file names durable, then the manifest with `change`. Layers may be read from disk
    /// before, but nothing is announced as durable before this returns.
    pub(crate) fn replace_manifest(
        &self,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<(), DiskError> {
        let mut manifest = self.manifest.lock();
        self.disk.sync_directory(&self.dir)?;
        let mut changed = manifest.clone();
        change(&mut changed);
        changed.generation += 1;
        changed.replace(&self.disk, &self.dir)?;
        *manifest = changed;
        Ok(())
    }

    /// Writes the oldest frozen layer to a file and lists it in the manifest.
    pub(crate) fn write_frozen(&self, frozen: &FrozenLayer) -> Result<(), LayerWriteError> {
        let FrozenLayer { layer, upto } = frozen;
        let mut listed = None;
        let mut opened = None;
        if layer.versions() > 0 {
            let seq = self.take_seq();
            let name = LayerName {
                start: layer.start(),
                end: upto.lsn,
                seq,
                image: false,
            };
            let system_identifier = self.identity.system_identifier;
            let path = write_delta(&self.disk, &self.dir, name, system_identifier, layer)?;
            // Opened through the file, so that what readers get is what the disk has.
            let delta = DeltaLayer::open(&self.disk, &path)?;
            listed = Some(ManifestLayer {
                name,
                file_bytes: delta.file_bytes(),
            });
            opened = Some(Arc::new(delta));
        }
        self.replace_manifest(|manifest| {
            manifest.layers.extend(listed);
            manifest.disk_consistent = *upto;
        })?;
        self.change_layers(|layers| {
            layers
                .frozen
                .retain(|other| !Arc::ptr_eq(&other.layer, layer));
            layers.deltas.extend(opened);
        });
        self.progress.set_durable(*upto);
        Ok(())
    }

    /// Lists finished image layers in the manifest and lets readers use them.
    pub(crate) fn add_images(
        &self,
        images: Vec<(LayerName, Arc<ImageLayer>)>,
        oldest: Option<Lsn>,
    ) -> Result<(), DiskError> {
        self.replace_manifest(|manifest| {
            manifest
                .layers
                .extend(images.iter().map(|(name, image)| ManifestLayer {
                    name: *name,
                    file_bytes: image.file_bytes(),
                }));
            if let Some(oldest) = oldest {
                manifest.oldest = manifest.oldest.max(oldest);
            }
        })?;
        if let Some(oldest) = oldest {
            self.oldest.fetch_max(oldest.0, Ordering::AcqRel);
        }
        self.change_layers(|layers| {
            layers
                .images
                .extend(images.into_iter().map(|(_, image)| image));
            layers.images.sort_by_key(|image| image.lsn());
        });
        Ok(())
    }

    /// Freezes the open layer at `upto`, waiting while too many are frozen already. The caller holds
    /// the ingest lock and has checked that nothing above `upto` is ingested.
    pub(crate) fn freeze(&self, ingest: &mut IngestState, upto: Watermark) {
        let most = self.options.max_frozen.max(1);
        self.progress.wait_until(None, |state| {
            self.layers().frozen.len() < most || self.poison.get().is_some() || state.closing
        });
        self.change_layers(|layers| {
            let layer = std::mem::replace(
                &mut layers.open,
                Arc::new(crate::mem_layer::MemLayer::new(upto.lsn)),
            );
            layers.frozen.push(Arc::new(FrozenLayer { layer, upto }));
        });
        ingest.frozen_upto = upto.lsn;
        self.progress.wake();
    }
}

/// Why a frozen layer was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerWriteError {
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The file written cannot be read back.
    #[error(transparent)]
    Reopen(#[from] OpenError),
}

impl LayerWriteError {
    /// As a failure of the disk: a file that reads back otherwise than it was written is one.
    pub(crate) fn into_disk_error(self, dir: &std::path::Path) -> DiskError {
        match self {
            LayerWriteError::Disk(error) | LayerWriteError::Reopen(OpenError::Disk(error)) => error,
            LayerWriteError::Reopen(error) => {
                DiskError::new("read back a layer in", dir, std::io::Error::other(error))
            }
        }
    }
}
