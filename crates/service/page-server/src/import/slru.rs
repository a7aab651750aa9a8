//! Copying SLRU pages into image layers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cluster_state::{SlruExtent, StateChange};
use page_store::ImageLayerWriter;
use pg_page::page_header;
use pg_page::slru::parse_segment_file_name;
use pg_types::{BLCKSZ, BlockNumber, PageKey, Slru};

use super::ImportError;
use super::error::disk;
use super::source::SourceCluster;

/// Segment files of one SLRU by number.
#[derive(Debug)]
pub(super) struct SlruFiles {
    slru: Slru,
    segments: BTreeMap<u32, (PathBuf, u64)>,
}

impl SlruFiles {
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|(_, length)| length).sum()
    }
}

/// # Errors
/// [`ImportError`] for a directory that cannot be read.
pub(super) fn find(source: &SourceCluster) -> Result<Vec<SlruFiles>, ImportError> {
    let mut found = Vec::new();
    for slru in Slru::ALL {
        let directory = source.pgdata.join(slru.directory());
        let mut segments = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(disk("read", &directory))? {
            let entry = entry.map_err(disk("read", &directory))?;
            let name = entry.file_name();
            let Some(segment) = name.to_str().and_then(parse_segment_file_name) else {
                continue;
            };
            let length = entry.metadata().map_err(disk("read", &directory))?.len();
            segments.insert(segment, (entry.path(), length));
        }
        found.push(SlruFiles { slru, segments });
    }
    Ok(found)
}

/// Copies every page of `files` and returns which there are.
///
/// # Errors
/// [`ImportError`] for a file that cannot be read, or a store that cannot be written.
pub(super) fn copy(
    files: &SlruFiles,
    images: &mut ImageLayerWriter,
    report: &mut impl FnMut(u64),
) -> Result<StateChange, ImportError> {
    let slru = files.slru;
    let mut existing: Vec<(BlockNumber, BlockNumber)> = Vec::new();
    for (segment, (path, _)) in &files.segments {
        // At most 32 pages.
        let bytes = fs::read(path).map_err(disk("read", path))?;
        let (pages, _) = bytes.as_chunks::<BLCKSZ>();
        let first = segment * Slru::PAGES_PER_SEGMENT;
        for (number, page) in (first..).zip(pages) {
            if !page_header::is_zero(page) {
                images.add(PageKey::slru(slru, number), page)?;
            }
        }
        if let Some(last) = (first..).zip(pages).map(|(number, _)| number).last() {
            existing.push((first, last));
        }
        report(bytes.len() as u64);
    }
    Ok(StateChange::Slru {
        slru,
        extent: extent(&existing),
    })
}

/// The range on the circle that leaves out the widest gap: ids wrap around, so the lowest page need not
/// be the first.
fn extent(existing: &[(BlockNumber, BlockNumber)]) -> Option<SlruExtent> {
    let (lowest, highest) = (existing.first()?.0, existing.last()?.1);
    let gaps = existing.iter().zip(existing.iter().skip(1));
    let inner = gaps
        .map(|((_, before), (after, _))| (after - before, *after, *before))
        .max_by_key(|(width, _, _)| *width)
        .filter(|(width, _, _)| *width > Slru::PAGES_PER_SEGMENT);
    Some(match inner {
        Some((_, first, last)) => SlruExtent { first, last },
        None => SlruExtent {
            first: lowest,
            last: highest,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_may_pass_the_highest_page() {
        assert_eq!(extent(&[]), None);
        assert_eq!(extent(&[(0, 3)]), Some(SlruExtent { first: 0, last: 3 }));
        let all = [(0, 31), (32, 40)];
        assert_eq!(extent(&all), Some(SlruExtent { first: 0, last: 40 }));
        let wrapped = [(0, 5), (131_008, 131_039), (131_040, 131_071)];
        assert_eq!(
            extent(&wrapped),
            Some(SlruExtent {
                first: 131_008,
                last: 5
            })
        );
    }
}
