//! The manifest: which layer files make up the store, and up to where.
//!
//! It is one small file, replaced as a whole: written under a temporary name, made durable, renamed,
//! directory made durable. Its watermark says up to where every change is in the layers it lists;
//! because a layer is durable before a manifest lists it, and a watermark moves only with its
//! layer, the manifest on disk never promises what is not there. Layout: `docs/formats/manifest.md`.

use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};

use crate::cursor::Cursor;
use crate::disk::Disk;
use crate::error::{Corruption, DiskError, MANIFEST_REMEDY, OpenError};
use crate::identity::{StoreIdentity, Watermark};
use crate::layer_file::{LayerKind, LayerName, TEMPORARY};

/// The file's name.
pub(crate) const MANIFEST: &str = "manifest";
/// The format version written, and the newest one read.
pub(crate) const MANIFEST_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"STRMANIF";
/// Longest manifest that is read: a few million layers.
const MAX_BYTES: u64 = 256 << 20;
const FLAG_DATA_CHECKSUMS: u32 = 1;

/// A layer file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManifestLayer {
    pub(crate) name: LayerName,
    pub(crate) file_bytes: u64,
}

/// The manifest's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// One more with every replacement.
    pub(crate) generation: u64,
    pub(crate) identity: StoreIdentity,
    /// Everything at or below is in the layers.
    pub(crate) disk_consistent: Watermark,
    /// Oldest LSN that can be read.
    pub(crate) oldest: Lsn,
    /// Number of the next layer file.
    pub(crate) next_seq: u32,
    /// In the order they were added.
    pub(crate) layers: Vec<ManifestLayer>,
}

impl Manifest {
    /// The manifest of an empty store.
    pub(crate) fn new(identity: StoreIdentity) -> Manifest {
        Manifest {
            generation: 1,
            identity,
            disk_consistent: Watermark::default(),
            oldest: Lsn::INVALID,
            next_seq: 1,
            layers: Vec::new(),
        }
    }

    /// The file's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
        let flags = if self.identity.data_checksums {
            FLAG_DATA_CHECKSUMS
        } else {
            0
        };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.identity.system_identifier.to_le_bytes());
        out.extend_from_slice(&self.identity.segment_size.bytes().to_le_bytes());
        out.extend_from_slice(&self.identity.major.number().to_le_bytes());
        out.extend_from_slice(&self.disk_consistent.timeline.0.to_le_bytes());
        out.extend_from_slice(&self.disk_consistent.lsn.0.to_le_bytes());
        out.extend_from_slice(&self.disk_consistent.last_record.0.to_le_bytes());
        out.extend_from_slice(&self.oldest.0.to_le_bytes());
        out.extend_from_slice(&self.next_seq.to_le_bytes());
        out.extend_from_slice(&(self.layers.len() as u32).to_le_bytes());
        for ManifestLayer { name, file_bytes } in &self.layers {
            out.extend_from_slice(&name.start.0.to_le_bytes());
            out.extend_from_slice(&name.end.0.to_le_bytes());
            out.extend_from_slice(&file_bytes.to_le_bytes());
            out.extend_from_slice(&name.seq.to_le_bytes());
            out.extend_from_slice(&(name.kind() as u32).to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes and checks the file's bytes.
    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Manifest, OpenError> {
        let bad = |what: &str| corrupt(path, what.to_owned());
        let (body, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| bad("it is cut off"))?;
        let mut cursor = Cursor::new(body);
        if cursor.array::<8>() != Some(MAGIC) {
            return Err(bad("it does not begin with a manifest's magic").into());
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(bad("its checksum is wrong").into());
        }
        let version = cursor.u32().ok_or_else(|| bad("it is cut off"))?;
        if version != MANIFEST_VERSION {
            let path = path.to_owned();
            return Err(OpenError::NewerFormat {
                path,
                found: version,
                known: MANIFEST_VERSION,
            });
        }
        Ok(decode_body(path, &mut cursor)?)
    }

    /// Reads the manifest of the store in `dir`.
    pub(crate) fn read(disk: &Disk, dir: &Path) -> Result<Manifest, OpenError> {
        let path = dir.join(MANIFEST);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::NoStore {
                    path: dir.to_owned(),
                });
            }
            Err(error) => return Err(error.into()),
        };
        if file.length() > MAX_BYTES {
            return Err(corrupt(&path, format!("it has {} bytes", file.length())).into());
        }
        let mut bytes = vec![0; file.length() as usize];
        file.read_at(0, &mut bytes)?;
        Manifest::decode(&path, &bytes)
    }

    /// Puts this manifest in place of the one in `dir`, durable when this returns.
    pub(crate) fn replace(&self, disk: &Disk, dir: &Path) -> Result<(), DiskError> {
        let path = dir.join(MANIFEST);
        let temporary = temporary_path(dir);
        let mut file = disk.create(&temporary)?;
        file.append(&self.encode())?;
        file.sync()?;
        disk.rename(&temporary, &path)?;
        disk.sync_directory(dir)
    }
}

/// Where a manifest is written before it is renamed.
pub(crate) fn temporary_path(dir: &Path) -> PathBuf {
    dir.join(format!("{MANIFEST}{TEMPORARY}"))
}

fn decode_body(path: &Path, cursor: &mut Cursor<'_>) -> Result<Manifest, Corruption> {
    let cut = || corrupt(path, "it is cut off".to_owned());
    let flags = cursor.u32().ok_or_else(cut)?;
    let generation = cursor.u64().ok_or_else(cut)?;
    let system_identifier = cursor.u64().ok_or_else(cut)?;
    let segment_size = cursor.u64().ok_or_else(cut)?;
    let segment_size =
        SegmentSize::new(segment_size).map_err(|error| corrupt(path, error.to_string()))?;
    let major = cursor.u32().ok_or_else(cut)?;
    let major = PgMajor::try_from(major).map_err(|error| corrupt(path, error.to_string()))?;
    let timeline = TimelineId(cursor.u32().ok_or_else(cut)?);
    let lsn = cursor.lsn().ok_or_else(cut)?;
    let last_record = cursor.lsn().ok_or_else(cut)?;
    let oldest = cursor.lsn().ok_or_else(cut)?;
    let next_seq = cursor.u32().ok_or_else(cut)?;
    let count = cursor.u32().ok_or_else(cut)?;
    let mut layers = Vec::new();
    for _ in 0..count {
        layers.push(decode_layer(path, cursor)?);
    }
    if cursor.left() != 0 {
        return Err(corrupt(path, "it is longer than its layers".to_owned()));
    }
    let data_checksums = flags & FLAG_DATA_CHECKSUMS != 0;
    let identity = StoreIdentity {
        system_identifier,
        major,
        segment_size,
        data_checksums,
    };
    let disk_consistent = Watermark {
        lsn,
        last_record,
        timeline,
    };
    Ok(Manifest {
        generation,
        identity,
        disk_consistent,
        oldest,
        next_seq,
        layers,
    })
}

fn decode_layer(path: &Path, cursor: &mut Cursor<'_>) -> Result<ManifestLayer, Corruption> {
    let cut = || corrupt(path, "it is cut off".to_owned());
    let start = cursor.lsn().ok_or_else(cut)?;
    let end = cursor.lsn().ok_or_else(cut)?;
    let file_bytes = cursor.u64().ok_or_else(cut)?;
    let seq = cursor.u32().ok_or_else(cut)?;
    let number = cursor.u32().ok_or_else(cut)?;
    let kind = LayerKind::from_number(number)
        .ok_or_else(|| corrupt(path, format!("it lists a layer of unknown kind {number}")))?;
    let name = LayerName {
        start,
        end,
        seq,
        image: kind == LayerKind::Image,
    };
    Ok(ManifestLayer { name, file_bytes })
}

fn corrupt(path: &Path, what: String) -> Corruption {
    Corruption {
        path: path.to_owned(),
        offset: 0,
        what,
        remedy: MANIFEST_REMEDY,
    }
}
