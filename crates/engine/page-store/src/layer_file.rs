//! What delta and image layer files have in common: name, header, footer.
//!
//! A layer file is written once, made durable under a temporary name, and renamed; after that it
//! never changes. The footer is written last and lies at the end, so a file that was cut off has
//! none and is refused. Layout: `docs/formats/layers.md`.

use std::path::{Path, PathBuf};

use pg_types::Lsn;
use serde::Serialize;

use crate::cursor::Cursor;
use crate::disk::{AppendFile, Disk, ReadFile};
use crate::error::{Corruption, DiskError, LAYER_REMEDY, OpenError};

/// The format version written, and the newest one read.
pub(crate) const LAYER_VERSION: u32 = 1;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 64;
/// Bytes of the footer.
pub(crate) const FOOTER_LEN: usize = 96;

const HEADER_MAGIC: [u8; 8] = *b"STRLAYER";
const FOOTER_MAGIC: [u8; 8] = *b"STRLFOOT";
/// Ending of a layer file's name.
const SUFFIX: &str = ".sl";
/// What a file's name ends with until it is complete.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Kind of a layer file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum LayerKind {
    /// Changes of pages and metadata in a range of LSNs.
    Delta = 1,
    /// Whole pages at one LSN.
    Image = 2,
}

impl LayerKind {
    pub(crate) fn from_number(number: u32) -> Option<LayerKind> {
        [LayerKind::Delta, LayerKind::Image]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }

    const fn name(self) -> &'static str {
        match self {
            LayerKind::Delta => "delta",
            LayerKind::Image => "image",
        }
    }
}

/// Identity of a layer file within its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LayerName {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
    pub(crate) seq: u32,
    pub(crate) image: bool,
}

impl LayerName {
    pub(crate) fn kind(self) -> LayerKind {
        if self.image {
            LayerKind::Image
        } else {
            LayerKind::Delta
        }
    }

    /// The file's name, `delta-…` or `image-…`.
    pub(crate) fn file_name(self) -> String {
        let LayerName {
            start, end, seq, ..
        } = self;
        format!(
            "{}-{:016X}-{:016X}-{seq:08X}{SUFFIX}",
            self.kind().name(),
            start.0,
            end.0
        )
    }

    /// Whether a directory entry was made by a store, complete or not.
    pub(crate) fn is_layer_file(name: &str) -> bool {
        let name = name.strip_suffix(TEMPORARY).unwrap_or(name);
        name.ends_with(SUFFIX) && (name.starts_with("delta-") || name.starts_with("image-"))
    }
}

/// The fields that header and footer share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerStamp {
    pub(crate) kind: LayerKind,
    pub(crate) system_identifier: u64,
    /// Delta: everything in it is above. Image: equal to `end`.
    pub(crate) start: Lsn,
    /// Delta: everything in it is at or below. Image: its pages are as of this LSN.
    pub(crate) end: Lsn,
}

impl LayerStamp {
    fn put(&self, magic: [u8; 8], out: &mut Vec<u8>) {
        out.extend_from_slice(&magic);
        out.extend_from_slice(&LAYER_VERSION.to_le_bytes());
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.system_identifier.to_le_bytes());
        out.extend_from_slice(&self.start.0.to_le_bytes());
        out.extend_from_slice(&self.end.0.to_le_bytes());
    }

    /// The header's bytes.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        self.put(HEADER_MAGIC, &mut out);
        out.resize(HEADER_LEN - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }
}

/// The end of a layer file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) stamp: LayerStamp,
    /// Distinct page keys.
    pub(crate) keys: u64,
    /// Versions of pages and metadata; for an image layer, pages.
    pub(crate) entries: u64,
    pub(crate) index_offset: u64,
    pub(crate) index_len: u64,
    pub(crate) index_crc: u32,
}

impl Footer {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_LEN);
        self.stamp.put(FOOTER_MAGIC, &mut out);
        for field in [self.keys, self.entries, self.index_offset, self.index_len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.index_crc.to_le_bytes());
        out.resize(FOOTER_LEN - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }
}

/// A layer file being written under its temporary name.
pub(crate) struct LayerFileWriter {
    disk: Disk,
    pub(crate) file: AppendFile,
    stamp: LayerStamp,
    path: PathBuf,
}

impl LayerFileWriter {
    /// Creates the file and writes its header.
    pub(crate) fn create(
        disk: &Disk,
        dir: &Path,
        name: LayerName,
        system_identifier: u64,
    ) -> Result<LayerFileWriter, DiskError> {
        let path = dir.join(name.file_name());
        let mut temporary = path.clone().into_os_string();
        temporary.push(TEMPORARY);
        let mut file = disk.create(Path::new(&temporary))?;
        let stamp = LayerStamp {
            kind: name.kind(),
            system_identifier,
            start: name.start,
            end: name.end,
        };
        file.append(&stamp.header())?;
        Ok(LayerFileWriter {
            disk: disk.clone(),
            file,
            stamp,
            path,
        })
    }

    /// Writes index and footer, makes the file durable and gives it its name. The directory is not
    /// synced: one sync serves several files, before the manifest names them.
    pub(crate) fn finish(
        mut self,
        index: &[u8],
        keys: u64,
        entries: u64,
    ) -> Result<PathBuf, DiskError> {
        let footer = Footer {
            stamp: self.stamp,
            keys,
            entries,
            index_offset: self.file.length(),
            index_len: index.len() as u64,
            index_crc: crc32c::crc32c(index),
        };
        self.file.append(index)?;
        self.file.append(&footer.encode())?;
        let temporary = self.file.path().to_owned();
        self.file.sync()?;
        self.disk.rename(&temporary, &self.path)?;
        Ok(self.path)
    }
}

/// A layer file whose header, footer and index checksum are right.
pub(crate) struct LayerFrame {
    pub(crate) file: ReadFile,
    pub(crate) footer: Footer,
    pub(crate) index: Vec<u8>,
}

/// Opens a layer file and reads its frame.
pub(crate) fn open_frame(disk: &Disk, path: &Path) -> Result<LayerFrame, OpenError> {
    let file = disk.open(path)?;
    let length = file.length();
    if length < (HEADER_LEN + FOOTER_LEN) as u64 {
        return Err(corrupt(path, 0, format!("only {length} bytes long")).into());
    }
    let mut header = [0; HEADER_LEN];
    file.read_at(0, &mut header)?;
    let header_stamp = decode_stamp(path, 0, &header, HEADER_MAGIC)?.0;
    let footer_at = length - FOOTER_LEN as u64;
    let mut bytes = [0; FOOTER_LEN];
    file.read_at(footer_at, &mut bytes)?;
    let footer = decode_footer(path, footer_at, &bytes)?;
    if header_stamp != footer.stamp {
        return Err(corrupt(path, footer_at, "footer and header disagree".to_owned()).into());
    }
    let fits = footer.index_offset.checked_add(footer.index_len) == Some(footer_at)
        && footer.index_offset >= HEADER_LEN as u64;
    if !fits {
        return Err(corrupt(
            path,
            footer_at,
            "the index lies outside the file".to_owned(),
        )
        .into());
    }
    let index_len = usize::try_from(footer.index_len)
        .map_err(|_| corrupt(path, footer_at, "the index is too long".to_owned()))?;
    let mut index = vec![0; index_len];
    file.read_at(footer.index_offset, &mut index)?;
    if crc32c::crc32c(&index) != footer.index_crc {
        return Err(corrupt(
            path,
            footer.index_offset,
            "index checksum is wrong".to_owned(),
        )
        .into());
    }
    Ok(LayerFrame {
        file,
        footer,
        index,
    })
}

fn decode_footer(path: &Path, at: u64, bytes: &[u8]) -> Result<Footer, OpenError> {
    let (stamp, mut rest) = decode_stamp(path, at, bytes, FOOTER_MAGIC)?;
    let mut fields = || {
        Some(Footer {
            stamp,
            keys: rest.u64()?,
            entries: rest.u64()?,
            index_offset: rest.u64()?,
            index_len: rest.u64()?,
            index_crc: rest.u32()?,
        })
    };
    fields().ok_or_else(|| corrupt(path, at, "the footer is cut off".to_owned()).into())
}

/// Checks magic, version and checksum of a header or footer.
fn decode_stamp<'a>(
    path: &Path,
    at: u64,
    bytes: &'a [u8],
    magic: [u8; 8],
) -> Result<(LayerStamp, Cursor<'a>), OpenError> {
    let cut = || corrupt(path, at, "header or footer is cut off".to_owned());
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(cut)?;
    let mut cursor = Cursor::new(body);
    if cursor.array::<8>().ok_or_else(cut)? != magic {
        return Err(corrupt(
            path,
            at,
            "this is not where a layer file's magic is".to_owned(),
        )
        .into());
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(corrupt(path, at, "header or footer checksum is wrong".to_owned()).into());
    }
    let version = cursor.u32().ok_or_else(cut)?;
    if version != LAYER_VERSION {
        let path = path.to_owned();
        return Err(OpenError::NewerFormat {
            path,
            found: version,
            known: LAYER_VERSION,
        });
    }
    let number = cursor.u32().ok_or_else(cut)?;
    let kind = LayerKind::from_number(number)
        .ok_or_else(|| corrupt(path, at, format!("layer kind {number} is unknown")))?;
    let stamp = LayerStamp {
        kind,
        system_identifier: cursor.u64().ok_or_else(cut)?,
        start: cursor.lsn().ok_or_else(cut)?,
        end: cursor.lsn().ok_or_else(cut)?,
    };
    Ok((stamp, cursor))
}

/// Damage of a layer file.
pub(crate) fn corrupt(path: &Path, offset: u64, what: String) -> Corruption {
    Corruption {
        path: path.to_owned(),
        offset,
        what,
        remedy: LAYER_REMEDY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_form() {
        let name = LayerName {
            start: Lsn(0x16),
            end: Lsn(0x1_0000_0000),
            seq: 7,
            image: false,
        };
        assert_eq!(
            name.file_name(),
            "delta-0000000000000016-0000000100000000-00000007.sl"
        );
        assert!(LayerName::is_layer_file(&name.file_name()));
        assert!(LayerName::is_layer_file(&format!(
            "{}.tmp",
            name.file_name()
        )));
        for other in ["manifest", "manifest.tmp", "lock", "x.sl", "delta-1"] {
            assert!(!LayerName::is_layer_file(other), "{other}");
        }
    }
}
