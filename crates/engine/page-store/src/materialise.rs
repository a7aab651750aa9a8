//! Background replay: images for pages whose chains have grown long.
//!
//! After a delta layer is written, each of its pages is looked at: how many changes would a read at
//! the layer's end apply? Pages above the thresholds are replayed once, here, and written to an image
//! layer at that LSN, so that no reader has to do it. A page that cannot be replayed is left to its
//! readers, who get the error with its cause.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pg_types::{BLCKSZ, Lsn, PageKey};

use crate::delta_layer::DeltaLayer;
use crate::error::ImageWriteError;
use crate::image_writer::ImageLayerWriter;
use crate::layer_set::LayerSet;
use crate::shared::Shared;

/// Serves delta layers that were written since the store was opened, until it is closed.
pub(crate) fn run(shared: &Arc<Shared>) {
    // Layers of earlier runs were looked at when they were written, and the history of blocks may
    // still be loading when the store has just been opened.
    let mut done = shared
        .layers()
        .deltas
        .last()
        .map_or(Lsn::INVALID, |delta| delta.end());
    loop {
        let newest = || {
            if shared.poison.get().is_some() {
                return None;
            }
            shared
                .layers()
                .deltas
                .last()
                .filter(|delta| delta.end() > done)
                .map(Arc::clone)
        };
        let Some(newest) = shared.progress.wait_for_work(newest) else {
            return;
        };
        let layers = shared.layers();
        let fresh = layers
            .deltas_between(done, newest.end())
            .map(Arc::clone)
            .collect::<Vec<_>>();
        done = newest.end();
        if let Err(error) = materialise(shared, &layers, &fresh, done) {
            tracing::warn!(%error, "pages with long chains were not written to an image layer");
        }
    }
}

/// Writes an image at `lsn` of every page of the `fresh` layers whose chain is too long there.
fn materialise(
    shared: &Arc<Shared>,
    layers: &LayerSet,
    fresh: &[Arc<DeltaLayer>],
    lsn: Lsn,
) -> Result<(), ImageWriteError> {
    let mut keys: Vec<PageKey> = fresh
        .iter()
        .flat_map(|delta| delta.keys())
        .map(|entry| entry.key)
        .filter(|key| is_long(shared, layers, key, lsn))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.is_empty() {
        return Ok(());
    }
    let mut writer = ImageLayerWriter::new(Arc::clone(shared), lsn, false);
    let mut page = [0; BLCKSZ];
    for key in keys {
        if shared.progress.lock().closing {
            return Ok(());
        }
        match shared.read_page(layers, key, lsn, &mut page, false) {
            Ok(_) => writer.add(key, &page)?,
            Err(error) => tracing::warn!(%error, "a page with a long chain cannot be replayed"),
        }
    }
    let pages = writer.pages();
    if pages > 0 {
        writer.finish()?;
        shared
            .counters
            .pages_materialised
            .fetch_add(pages, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether a read of `key` at `lsn` would apply more changes than the thresholds allow.
fn is_long(shared: &Shared, layers: &LayerSet, key: &PageKey, lsn: Lsn) -> bool {
    let floor = layers
        .images_between(Lsn::INVALID, lsn)
        .find(|image| image.find(key).is_some())
        .map_or(Lsn::INVALID, |image| image.lsn());
    let (mut records, mut bytes) = (0u32, 0u32);
    for delta in layers.deltas_between(floor, lsn) {
        let Some(entry) = delta.entry(key) else {
            continue;
        };
        records = records.saturating_add(entry.tail_records);
        bytes = bytes.saturating_add(entry.tail_bytes);
        if entry.based {
            break;
        }
    }
    // A single image or initialising record is as good a base as an image layer has.
    records > 1
        && (records > shared.options.image_chain_records
            || bytes > shared.options.image_chain_bytes)
}
