//! Copying relation blocks into image layers.
//!
//! One thread reads and checks, this one writes: each is as fast as its disk. Memory is bounded by the
//! few chunks between them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use cluster_state::{ForkChange, ForkState, StateChange};
use page_store::ImageLayerWriter;
use pg_page::page_header;
use pg_types::{BLCKSZ, BlockNumber, PageKey, RELSEG_BLOCKS, RelFork};

use super::ImportError;
use super::error::disk;
use super::files::{FoundFiles, SegmentFile};

/// Blocks read at once.
const CHUNK_BLOCKS: u32 = 128;
/// Chunks between reader and writer.
const CHUNKS_AHEAD: usize = 8;

struct Chunk {
    fork: RelFork,
    first: BlockNumber,
    bytes: Vec<u8>,
}

/// Copies every block of `found` and returns the sizes of its forks. Blocks of zeros need no image.
///
/// # Errors
/// [`ImportError`] for a file that cannot be read or a page whose checksum does not match.
pub(super) fn copy(
    found: &FoundFiles,
    checksums: bool,
    images: &mut ImageLayerWriter,
    report: &mut impl FnMut(u64),
) -> Result<Vec<StateChange>, ImportError> {
    let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read_all(found, checksums, &sender));
        for chunk in chunks {
            let Chunk { fork, first, bytes } = chunk;
            let (pages, _) = bytes.as_chunks::<BLCKSZ>();
            for (block, page) in (first..).zip(pages) {
                if !page_header::is_zero(page) {
                    images.add(PageKey::relation(fork.locator, fork.fork, block), page)?;
                }
            }
            report(bytes.len() as u64);
        }
        match reader.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    let sizes = found.forks.iter().map(|(fork, segments)| {
        let blocks = segments.iter().map(|segment| segment.blocks).sum();
        let state = Some(ForkState {
            blocks,
            change: ForkChange::Grown,
        });
        StateChange::Fork { fork: *fork, state }
    });
    Ok(sizes.collect())
}

fn read_all(
    found: &FoundFiles,
    checksums: bool,
    chunks: &SyncSender<Chunk>,
) -> Result<(), ImportError> {
    for (fork, segments) in &found.forks {
        for (number, segment) in (0..).zip(segments) {
            let first: BlockNumber = number * RELSEG_BLOCKS;
            if !read_segment(*fork, first, segment, checksums, chunks)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// False when nobody wants the chunks any more: the writer has failed and says why itself.
fn read_segment(
    fork: RelFork,
    first: BlockNumber,
    segment: &SegmentFile,
    checksums: bool,
    chunks: &SyncSender<Chunk>,
) -> Result<bool, ImportError> {
    if segment.blocks == 0 {
        return Ok(true);
    }
    let file = File::open(&segment.path).map_err(disk("open", &segment.path))?;
    let mut at = 0;
    while at < segment.blocks {
        let count = CHUNK_BLOCKS.min(segment.blocks - at);
        let mut bytes = vec![0; count as usize * BLCKSZ];
        file.read_exact_at(&mut bytes, u64::from(at) * BLCKSZ as u64)
            .map_err(disk("read", &segment.path))?;
        if checksums {
            check_pages(&bytes, first + at, &segment.path)?;
        }
        if chunks
            .send(Chunk {
                fork,
                first: first + at,
                bytes,
            })
            .is_err()
        {
            return Ok(false);
        }
        at += count;
    }
    Ok(true)
}

/// As PostgreSQL checks pages when it reads them: those that were never initialised have none.
fn check_pages(bytes: &[u8], first: BlockNumber, path: &Path) -> Result<(), ImportError> {
    let (pages, _) = bytes.as_chunks::<BLCKSZ>();
    for (block, page) in (first..).zip(pages) {
        let valid = if page_header::is_new(page) {
            page_header::is_zero(page)
        } else {
            pg_page::checksum_matches(page, block)
        };
        if !valid {
            return Err(ImportError::Checksum {
                path: path.to_owned(),
                block,
                stored: page_header::stored_checksum(page),
                computed: pg_page::checksum(page, block),
            });
        }
    }
    Ok(())
}
