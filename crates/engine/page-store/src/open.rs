//! Creating a store, and opening one after a stop or a crash.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::delta_layer::DeltaLayer;
use crate::disk::Disk;
use crate::error::Corruption;
use crate::error::{CreateError, DiskError, LAYER_REMEDY, OpenError};
use crate::identity::StoreIdentity;
use crate::image_layer::ImageLayer;
use crate::layer_file::{Footer, LayerName};
use crate::layer_set::LayerSet;
use crate::manifest::{self, MANIFEST, Manifest, ManifestLayer};
use crate::mem_layer::MemLayer;

/// Name of the file whose lock keeps a second process out.
pub(crate) const LOCK: &str = "lock";

/// What opening found.
pub(crate) struct Opened {
    pub(crate) manifest: Manifest,
    pub(crate) layers: LayerSet,
    pub(crate) lock: File,
}

/// Creates an empty store.
pub(crate) fn create(dir: &Path, identity: &StoreIdentity) -> Result<(), CreateError> {
    std::fs::create_dir_all(dir).map_err(|source| DiskError::new("create", dir, source))?;
    if dir.join(MANIFEST).exists() {
        return Err(CreateError::Exists {
            path: dir.to_owned(),
        });
    }
    let disk = Disk::default();
    Manifest::new(*identity).replace(&disk, dir)?;
    if let Some(parent) = dir.parent() {
        disk.sync_directory(parent)?;
    }
    Ok(())
}

/// Opens a store.
pub(crate) fn open(dir: &Path, disk: &Disk) -> Result<Opened, OpenError> {
    // Before the lock file is made in a directory that is no store's.
    Manifest::read(disk, dir)?;
    let Some(lock) = disk.lock(&dir.join(LOCK))? else {
        return Err(OpenError::InUse {
            path: dir.to_owned(),
        });
    };
    // Again under the lock: it may have been replaced until the other process ended.
    let manifest = Manifest::read(disk, dir)?;
    remove_unlisted(dir, disk, &manifest)?;
    let layers = open_layers(dir, disk, &manifest)?;
    tracing::info!(
        dir = %dir.display(),
        deltas = layers.deltas.len(),
        images = layers.images.len(),
        bytes = layers.file_bytes(),
        disk_consistent = %manifest.disk_consistent.lsn,
        "opened the page store"
    );
    Ok(Opened {
        manifest,
        layers,
        lock,
    })
}

fn open_layers(dir: &Path, disk: &Disk, manifest: &Manifest) -> Result<LayerSet, OpenError> {
    let mut layers = LayerSet {
        open: Arc::new(MemLayer::new(manifest.disk_consistent.lsn)),
        frozen: Vec::new(),
        deltas: Vec::new(),
        images: Vec::new(),
    };
    for listed in &manifest.layers {
        let path = dir.join(listed.name.file_name());
        if listed.name.image {
            let image = ImageLayer::open(disk, &path)?;
            check_listed(&path, listed, manifest, image.footer(), image.file_bytes())?;
            layers.images.push(Arc::new(image));
        } else {
            let delta = DeltaLayer::open(disk, &path)?;
            check_listed(&path, listed, manifest, delta.footer(), delta.file_bytes())?;
            layers.deltas.push(Arc::new(delta));
        }
    }
    layers.images.sort_by_key(|image| image.lsn());
    layers.deltas.sort_by_key(|delta| delta.start());
    for (delta, next) in layers.deltas.iter().zip(layers.deltas.iter().skip(1)) {
        if delta.end() > next.start() {
            let what = "two delta layers cover the same LSNs".to_owned();
            let path = dir.join(MANIFEST);
            return Err(Corruption {
                path,
                offset: 0,
                what,
                remedy: LAYER_REMEDY,
            }
            .into());
        }
    }
    Ok(layers)
}

/// A file that has the right name but is another store's, or another layer, is refused.
fn check_listed(
    path: &Path,
    listed: &ManifestLayer,
    manifest: &Manifest,
    footer: &Footer,
    file_bytes: u64,
) -> Result<(), Corruption> {
    let stamp = footer.stamp;
    let what = if stamp.system_identifier != manifest.identity.system_identifier {
        "it is a layer of another cluster"
    } else if (stamp.start, stamp.end) != (listed.name.start, listed.name.end) {
        "it covers other LSNs than the manifest says"
    } else if file_bytes != listed.file_bytes {
        "it has another size than the manifest says"
    } else {
        return Ok(());
    };
    let (path, what) = (path.to_owned(), what.to_owned());
    Err(Corruption {
        path,
        offset: 0,
        what,
        remedy: LAYER_REMEDY,
    })
}

/// Removes layer files that the manifest does not list: a crash came before it could.
fn remove_unlisted(dir: &Path, disk: &Disk, manifest: &Manifest) -> Result<(), DiskError> {
    let listed: std::collections::HashSet<String> = manifest
        .layers
        .iter()
        .map(|layer| layer.name.file_name())
        .collect();
    let mut removed = 0;
    for name in disk.list(dir)? {
        let stray = LayerName::is_layer_file(&name) && !listed.contains(&name);
        let path = dir.join(&name);
        if stray || path == manifest::temporary_path(dir) {
            disk.remove(&path)?;
            removed += 1;
        }
    }
    if removed > 0 {
        tracing::info!(dir = %dir.display(), removed, "removed files that a crash left behind");
    }
    Ok(())
}
