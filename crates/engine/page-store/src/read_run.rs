//! Reading neighbouring pages at once.
//!
//! A sequential scan of cold data asks for runs of blocks that lie next to each other in an image
//! layer and have not changed since. Those are found with one search per layer for the whole run and
//! read with one system call; everything else is read page by page.

use std::cell::RefCell;
use std::sync::Arc;

use pg_types::{BLCKSZ, BlockNumber, Lsn, PageKey};

use crate::error::GetPageError;
use crate::image_layer::{ImageLayer, Slot};
use crate::layer_set::LayerSet;
use crate::read::PageInfo;
use crate::shared::Shared;

/// Pages found, and read, at once.
const WINDOW: u32 = 128;

/// Receives each page.
pub(crate) type PageSink<'a> = dyn FnMut(u32, Result<(&[u8; BLCKSZ], PageInfo), GetPageError>) + 'a;

thread_local! {
    /// Memory for the pages of a run, kept between reads.
    static PAGES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where a page of the window is, if it can be read without replay.
struct Place<'a> {
    image: &'a Arc<ImageLayer>,
    slot: Slot,
}

impl Shared {
    /// See [`crate::PageStore::get_pages`].
    pub(crate) fn read_pages(&self, first: PageKey, count: u32, lsn: Lsn, sink: &mut PageSink<'_>) {
        let mut done = 0;
        while done < count {
            // A block past the last possible number is not there; whoever asks gets an error from
            // the caller's own bounds, the store ends the run.
            let Some(block) = first.block.checked_add(done) else {
                return;
            };
            let key = PageKey { block, ..first };
            let window = WINDOW
                .min(count - done)
                .min(BlockNumber::MAX - block)
                .max(1);
            match self.readable(key, lsn) {
                Ok(layers) => self.read_window(&layers, key, window, lsn, done, sink),
                Err(_) => {
                    for number in 0..window {
                        let key = PageKey {
                            block: block.saturating_add(number),
                            ..first
                        };
                        if let Err(error) = self.readable(key, lsn) {
                            sink(done + number, Err(error));
                        }
                    }
                }
            }
            done += window;
        }
    }

    fn read_window(
        &self,
        layers: &LayerSet,
        first: PageKey,
        count: u32,
        lsn: Lsn,
        base: u32,
        sink: &mut PageSink<'_>,
    ) {
        let places = self.places(layers, first, count, lsn);
        let mut bytes = PAGES.take();
        let mut at = 0usize;
        while let Some(place) = places.get(at) {
            let number = base + at as u32;
            let key = PageKey {
                block: first.block + at as u32,
                ..first
            };
            let run = match place {
                Some(Place {
                    image,
                    slot: Slot::Stored(slot),
                }) => {
                    let run = run_length(places.get(at..).unwrap_or_default(), image, *slot);
                    self.read_stored(image, *slot, run, key, number, &mut bytes, sink);
                    run
                }
                Some(Place {
                    image,
                    slot: Slot::Zero,
                }) => {
                    let info = PageInfo {
                        version: image.lsn(),
                        zero: true,
                        from_cache: false,
                        chain: 0,
                    };
                    self.counters.note_read(&info);
                    sink(number, Ok((&[0; BLCKSZ], info)));
                    1
                }
                None => {
                    let mut page = [0; BLCKSZ];
                    let result = self.read_page(layers, key, lsn, &mut page, true);
                    sink(number, result.map(|info| (&page, info)));
                    1
                }
            };
            at += run.max(1);
        }
        PAGES.set(bytes);
    }

    /// Where the pages of a window are, for those whose newest state is in an image layer.
    fn places<'a>(
        &self,
        layers: &'a LayerSet,
        first: PageKey,
        count: u32,
        lsn: Lsn,
    ) -> Vec<Option<Place<'a>>> {
        let mut places: Vec<Option<Place<'a>>> = (0..count).map(|_| None).collect();
        let mut missing = count;
        for image in layers.images_between(Lsn::INVALID, lsn) {
            if missing == 0 {
                break;
            }
            image.find_run(&first, count, &mut |number, slot| {
                if let Some(place @ None) = places.get_mut(number as usize) {
                    *place = Some(Place { image, slot });
                    missing -= 1;
                }
            });
        }
        // Pages changed since their image, or whose image is of an earlier life, need replay.
        let oldest = places.iter().flatten().map(|place| place.image.lsn()).min();
        let Some(oldest) = oldest else { return places };
        let mut touched = vec![false; places.len()];
        for delta in layers.deltas_between(oldest, lsn) {
            delta.mark_touched(&first, oldest, lsn, &mut touched);
        }
        for ((number, place), touched) in (0u32..).zip(&mut places).zip(touched) {
            let Some(found) = place else { continue };
            let key = PageKey {
                block: first.block + number,
                ..first
            };
            let since = found.image.lsn();
            let earlier_life = self.history.origin(&key, lsn).since >= since;
            let in_memory = || {
                layers
                    .in_memory()
                    .any(|layer| layer.start() < lsn && layer.touches(&key, since, lsn))
            };
            if touched || earlier_life || in_memory() {
                *place = None;
            }
        }
        places
    }

    #[expect(clippy::too_many_arguments, reason = "one read, described once")]
    fn read_stored(
        &self,
        image: &ImageLayer,
        slot: u32,
        run: usize,
        key: PageKey,
        number: u32,
        bytes: &mut Vec<u8>,
        sink: &mut PageSink<'_>,
    ) {
        bytes.resize(run * BLCKSZ, 0);
        let read = image.read_unchecked(slot, bytes);
        let (pages, _) = bytes.as_chunks::<BLCKSZ>();
        let whole = read.is_ok();
        for (offset, page) in (0u32..).zip(pages) {
            let key = PageKey {
                block: key.block + offset,
                ..key
            };
            let info = PageInfo {
                version: image.lsn(),
                zero: false,
                from_cache: false,
                chain: 0,
            };
            // When the long read fails, each page is tried alone: one bad sector costs one page.
            let mut alone = [0; BLCKSZ];
            let result = if whole {
                image
                    .check(slot + offset, page)
                    .map(|()| page)
                    .map_err(Into::into)
            } else {
                image
                    .read(Slot::Stored(slot + offset), &mut alone)
                    .map(|()| &alone)
            };
            self.counters.note_read(&info);
            sink(
                number + offset,
                result
                    .map(|page| (page, info))
                    .map_err(|error: crate::layer_error::LayerError| error.of_page(key)),
            );
        }
    }
}

/// How many pages from here on lie one after another in the same file.
fn run_length(places: &[Option<Place<'_>>], image: &Arc<ImageLayer>, slot: u32) -> usize {
    let expected = (slot..).map(Slot::Stored);
    let following = places.iter().zip(expected).take_while(|(place, expected)| {
        place
            .as_ref()
            .is_some_and(|place| Arc::ptr_eq(place.image, image) && place.slot == *expected)
    });
    following.count()
}
