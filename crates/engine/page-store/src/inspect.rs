//! What a layer file or a manifest holds, for people: `strandline inspect layer`.

use std::path::{Path, PathBuf};

use pg_types::{BLCKSZ, Lsn, PageKey};
use serde::Serialize;

use crate::delta_layer::DeltaLayer;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::identity::{StoreIdentity, Watermark};
use crate::image_layer::{ImageLayer, Slot};
use crate::layer_file::{Footer, LAYER_VERSION, LayerKind, open_frame};
use crate::manifest::{MANIFEST, MANIFEST_VERSION, Manifest};

/// A layer file, with every checksum verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerDescription {
    /// The file.
    pub path: PathBuf,
    /// Its kind.
    pub kind: LayerKind,
    /// Version of the format.
    pub format_version: u32,
    /// The cluster it belongs to.
    pub system_identifier: u64,
    /// Everything in it is above this LSN (an image layer: equal to `end`).
    pub start: Lsn,
    /// Everything in it is at or below this LSN.
    pub end: Lsn,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Distinct pages.
    pub pages: u64,
    /// Versions of pages and metadata.
    pub entries: u64,
    /// What only this kind of layer has.
    pub content: LayerContent,
    /// What is in it by relation fork or SLRU, in order of key.
    pub forks: Vec<ForkContent>,
    /// Blocks or pages whose bytes are damaged; empty when the file is sound.
    pub damage: Vec<String>,
}

/// What only one kind of layer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "content")]
pub enum LayerContent {
    /// Of a delta layer.
    Delta {
        /// Checksummed blocks.
        blocks: u64,
        /// Metadata versions.
        metadata: u64,
        /// Most changes of one page.
        longest_chain: u32,
        /// The page that has them.
        longest_chain_page: Option<String>,
    },
    /// Of an image layer.
    Image {
        /// Runs of neighbouring pages.
        runs: u64,
        /// Pages stored.
        stored: u64,
        /// Pages that are all zeros and only noted.
        zero: u64,
    },
}

/// One fork's or SLRU's part of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForkContent {
    /// The fork, such as `1663/5/1259_vm`, or the SLRU's directory.
    pub name: String,
    /// Pages.
    pub pages: u64,
    /// Versions of them.
    pub entries: u64,
    /// Lowest block.
    pub first_block: u32,
    /// Highest block.
    pub last_block: u32,
}

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestDescription {
    /// The file.
    pub path: PathBuf,
    /// Version of the format.
    pub format_version: u32,
    /// How often it was replaced.
    pub generation: u64,
    /// Whose store it is.
    pub identity: StoreIdentity,
    /// Everything at or below is in the layers.
    pub disk_consistent: Watermark,
    /// Oldest LSN that can be read.
    pub oldest: Lsn,
    /// File names of the layers, in the order they were added.
    pub layers: Vec<String>,
}

/// Describes a layer file and verifies every checksum in it. The file need not be in a store.
///
/// # Errors
/// [`OpenError`] when header, footer or index are damaged; damage of blocks and pages is listed in
/// the description instead.
pub fn describe(path: &Path) -> Result<LayerDescription, OpenError> {
    let disk = Disk::default();
    let frame = open_frame(&disk, path)?;
    let footer = frame.footer;
    match footer.stamp.kind {
        LayerKind::Delta => Ok(describe_delta(
            path,
            &footer,
            &DeltaLayer::open(&disk, path)?,
        )),
        LayerKind::Image => Ok(describe_image(
            path,
            &footer,
            &ImageLayer::open(&disk, path)?,
        )),
    }
}

/// Describes the manifest of the store in `dir`.
///
/// # Errors
/// [`OpenError`] when there is none or it is damaged.
pub fn describe_manifest(dir: &Path) -> Result<ManifestDescription, OpenError> {
    let manifest = Manifest::read(&Disk::default(), dir)?;
    Ok(ManifestDescription {
        path: dir.join(MANIFEST),
        format_version: MANIFEST_VERSION,
        generation: manifest.generation,
        identity: manifest.identity,
        disk_consistent: manifest.disk_consistent,
        oldest: manifest.oldest,
        layers: manifest
            .layers
            .iter()
            .map(|layer| layer.name.file_name())
            .collect(),
    })
}

fn describe_delta(path: &Path, footer: &Footer, layer: &DeltaLayer) -> LayerDescription {
    let mut damage = Vec::new();
    let mut metadata = 0;
    for number in 0..layer.block_count() {
        let read = layer.for_each_in_block(number as u32, &mut |_, kind, _, _| {
            metadata += u64::from(!kind.is_page());
            Ok(())
        });
        if let Err(error) = read {
            damage.push(error.to_string());
        }
    }
    let longest = layer.keys().iter().max_by_key(|entry| entry.records);
    let content = LayerContent::Delta {
        blocks: layer.block_count() as u64,
        metadata,
        longest_chain: longest.map_or(0, |entry| entry.records),
        longest_chain_page: longest.map(|entry| entry.key.to_string()),
    };
    let mut forks = Vec::new();
    for entry in layer.keys() {
        note_pages(&mut forks, &entry.key, 1, u64::from(entry.records));
    }
    description(path, footer, layer.file_bytes(), content, forks, damage)
}

fn describe_image(path: &Path, footer: &Footer, layer: &ImageLayer) -> LayerDescription {
    let mut damage = Vec::new();
    let mut page = [0; BLCKSZ];
    for slot in 0..layer.stored() {
        if let Err(error) = layer.read(Slot::Stored(slot), &mut page) {
            damage.push(error.to_string());
        }
    }
    let mut forks = Vec::new();
    let mut zero = 0;
    for run in layer.runs() {
        let count = u64::from(run.count);
        zero += if run.slot.is_none() { count } else { 0 };
        note_pages(&mut forks, &run.key, run.count, count);
    }
    let stored = u64::from(layer.stored());
    let content = LayerContent::Image {
        runs: layer.runs().len() as u64,
        stored,
        zero,
    };
    description(path, footer, layer.file_bytes(), content, forks, damage)
}

fn description(
    path: &Path,
    footer: &Footer,
    file_bytes: u64,
    content: LayerContent,
    forks: Vec<(PageKey, ForkContent)>,
    damage: Vec<String>,
) -> LayerDescription {
    LayerDescription {
        path: path.to_owned(),
        kind: footer.stamp.kind,
        format_version: LAYER_VERSION,
        system_identifier: footer.stamp.system_identifier,
        start: footer.stamp.start,
        end: footer.stamp.end,
        file_bytes,
        index_bytes: footer.index_len,
        pages: footer.keys,
        entries: footer.entries,
        content,
        forks: forks.into_iter().map(|(_, fork)| fork).collect(),
        damage,
    }
}

/// Adds pages to the last fork of the list, or begins the next one; keys come in order.
fn note_pages(forks: &mut Vec<(PageKey, ForkContent)>, key: &PageKey, count: u32, entries: u64) {
    let of_fork = PageKey { block: 0, ..*key };
    let last_block = key.block.saturating_add(count.saturating_sub(1));
    if let Some((last, fork)) = forks.last_mut()
        && *last == of_fork
    {
        fork.pages += u64::from(count);
        fork.entries += entries;
        fork.last_block = last_block;
        return;
    }
    let name = match (key.as_relation(), key.as_slru()) {
        (Some(fork), _) => fork.to_string(),
        (None, Some(slru)) => slru.directory().to_owned(),
        (None, None) => of_fork.to_string(),
    };
    let pages = u64::from(count);
    forks.push((
        of_fork,
        ForkContent {
            name,
            pages,
            entries,
            first_block: key.block,
            last_block,
        },
    ));
}
