//! The layers of a store at one moment.
//!
//! A set never changes; changing the store's layers means putting a new set in place of the old
//! one. A reader takes the current set once and finds every version in it exactly once, however many
//! layers are frozen, written or added meanwhile.

use std::sync::Arc;

use pg_types::Lsn;

use crate::delta_layer::DeltaLayer;
use crate::identity::Watermark;
use crate::image_layer::ImageLayer;
use crate::mem_layer::MemLayer;

/// A layer that takes no more changes and waits to be written to a file.
pub(crate) struct FrozenLayer {
    pub(crate) layer: Arc<MemLayer>,
    /// Everything at or below is in this layer or an older one.
    pub(crate) upto: Watermark,
}

/// Every layer.
#[derive(Clone)]
pub(crate) struct LayerSet {
    /// Takes changes.
    pub(crate) open: Arc<MemLayer>,
    /// Oldest first.
    pub(crate) frozen: Vec<Arc<FrozenLayer>>,
    /// Oldest first; their LSN ranges do not overlap.
    pub(crate) deltas: Vec<Arc<DeltaLayer>>,
    /// By ascending LSN.
    pub(crate) images: Vec<Arc<ImageLayer>>,
}

impl LayerSet {
    /// Layers in memory, newest first.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = &MemLayer> {
        let frozen = self.frozen.iter().rev().map(|frozen| &*frozen.layer);
        std::iter::once(&*self.open).chain(frozen)
    }

    /// Delta layers with versions in `(above, upto]`, newest first.
    pub(crate) fn deltas_between(
        &self,
        above: Lsn,
        upto: Lsn,
    ) -> impl Iterator<Item = &Arc<DeltaLayer>> {
        self.deltas
            .iter()
            .rev()
            .skip_while(move |delta| delta.start() >= upto)
            .take_while(move |delta| delta.end() > above)
    }

    /// Image layers with an LSN in `(above, upto]`, newest first.
    pub(crate) fn images_between(
        &self,
        above: Lsn,
        upto: Lsn,
    ) -> impl Iterator<Item = &Arc<ImageLayer>> {
        self.images
            .iter()
            .rev()
            .skip_while(move |image| image.lsn() > upto)
            .take_while(move |image| image.lsn() > above)
    }

    /// Bytes of the layer files.
    pub(crate) fn file_bytes(&self) -> u64 {
        let deltas: u64 = self.deltas.iter().map(|delta| delta.file_bytes()).sum();
        let images: u64 = self.images.iter().map(|image| image.file_bytes()).sum();
        deltas + images
    }
}
