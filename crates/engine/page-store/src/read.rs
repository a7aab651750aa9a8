//! GetPage@LSN.
//!
//! Smart replay: the newest state that needs nothing before it (an image, a record that builds the
//! page anew, a cached version, an image layer, or what the block's life began with), then only this
//! page's changes after it. Nothing at or below the beginning of the block's life is looked at.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use pg_types::{BLCKSZ, Lsn, PageKey};

use crate::batch::is_zero_page;
use crate::chain::Chain;
use crate::error::GetPageError;
use crate::history::PageBase;
use crate::layer_set::LayerSet;
use crate::replay;
use crate::shared::Shared;

/// Copies of copies that a read follows: more than databases are ever created from each other
/// within one retained history, few enough to end.
const MAX_COPIES: u32 = 64;

/// How a page was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageInfo {
    /// The page is as of every LSN from this one to the one asked for.
    pub version: Lsn,
    /// Every byte is zero.
    pub zero: bool,
    /// No change had to be applied, because the version was in the cache.
    pub from_cache: bool,
    /// Changes applied.
    pub chain: u32,
}

thread_local! {
    /// Memory for chains, kept between reads.
    static CHAIN: RefCell<Chain> = RefCell::default();
}

impl Shared {
    /// Checks that `lsn` can be read, and takes the layers to read it from.
    pub(crate) fn readable(
        &self,
        key: PageKey,
        lsn: Lsn,
    ) -> Result<std::sync::Arc<LayerSet>, GetPageError> {
        let applied = self.progress.applied();
        if lsn > applied {
            return Err(GetPageError::NotApplied { key, lsn, applied });
        }
        let oldest = Lsn(self.oldest.load(Ordering::Acquire));
        if lsn < oldest {
            return Err(GetPageError::TooOld { key, lsn, oldest });
        }
        // Taken after `applied` was read: everything applied by then is in this set.
        Ok(self.layers())
    }

    /// Reads one page from layers that hold everything up to `lsn`.
    pub(crate) fn read_page(
        &self,
        layers: &LayerSet,
        key: PageKey,
        lsn: Lsn,
        page: &mut [u8; BLCKSZ],
        keep: bool,
    ) -> Result<PageInfo, GetPageError> {
        let mut chain = CHAIN.take();
        chain.clear();
        let result = self.read_version(layers, key, lsn, page, &mut chain, MAX_COPIES);
        chain.shrink();
        CHAIN.set(chain);
        let info = result?;
        if keep && info.chain > 0 {
            self.cache.keep(&key, info.version, page);
        }
        self.counters.note_read(&info);
        Ok(info)
    }

    fn read_version(
        &self,
        layers: &LayerSet,
        key: PageKey,
        lsn: Lsn,
        page: &mut [u8; BLCKSZ],
        chain: &mut Chain,
        copies: u32,
    ) -> Result<PageInfo, GetPageError> {
        let origin = self.history.origin(&key, lsn);
        let cached = self.cache.find(&key, origin.since, lsn, page);
        let mut floor = cached.unwrap_or(origin.since);
        let image = layers
            .images_between(floor, lsn)
            .find_map(|layer| layer.find(&key).map(|slot| (layer, slot)));
        if let Some((layer, _)) = &image {
            floor = layer.lsn();
        }
        let based = collect(layers, key, floor, lsn, chain)?;
        let mut version = floor;
        if based {
            page.fill(0);
        } else if let Some((layer, slot)) = image {
            layer.read(slot, page).map_err(|error| error.of_page(key))?;
        } else if cached.is_none() {
            match origin.base {
                PageBase::Zero => page.fill(0),
                PageBase::CopyOf {
                    key: source,
                    lsn: at,
                } => {
                    self.read_copied(layers, key, source, at.min(lsn), page, copies)?;
                }
            }
        }
        if let Some(last) = replay::apply(page, key, chain, self.identity.major)? {
            version = last;
        }
        let from_cache = cached == Some(version) && chain.len() == 0;
        Ok(PageInfo {
            version,
            zero: is_zero_page(page),
            from_cache,
            chain: chain.len() as u32,
        })
    }

    fn read_copied(
        &self,
        layers: &LayerSet,
        key: PageKey,
        source: PageKey,
        at: Lsn,
        page: &mut [u8; BLCKSZ],
        copies: u32,
    ) -> Result<(), GetPageError> {
        let Some(copies) = copies.checked_sub(1) else {
            return Err(GetPageError::TooManyCopies {
                key,
                limit: MAX_COPIES,
            });
        };
        let oldest = Lsn(self.oldest.load(Ordering::Acquire));
        if at < oldest {
            return Err(GetPageError::TooOld {
                key: source,
                lsn: at,
                oldest,
            });
        }
        let mut chain = Chain::default();
        self.read_version(layers, source, at, page, &mut chain, copies)?;
        Ok(())
    }
}

/// Collects the changes of `key` in `(above, upto]` from the last one that needs none before it, in
/// LSN order. Returns whether there was such a one.
fn collect(
    layers: &LayerSet,
    key: PageKey,
    above: Lsn,
    upto: Lsn,
    chain: &mut Chain,
) -> Result<bool, GetPageError> {
    let mut based = false;
    for layer in layers.in_memory() {
        if layer.start() >= upto {
            continue;
        }
        based = layer.collect(&key, above, upto, chain);
        if based || layer.start() <= above {
            chain.sort();
            return Ok(based);
        }
    }
    for layer in layers.deltas_between(above, upto) {
        based = layer
            .collect(&key, above, upto, chain)
            .map_err(|error| error.of_page(key))?;
        if based {
            break;
        }
    }
    chain.sort();
    Ok(based)
}
