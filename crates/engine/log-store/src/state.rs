//! Who the store is and what it has promised: the file `state`.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use pg_types::{PgMajor, SegmentSize, TimelineId};
use serde::{Deserialize, Serialize};
use wal_quorum::Fence;

use crate::error::{OpenError, StoreError};

const FILE: &str = "state";

/// Format of the directory; a higher one is refused.
const FORMAT: u32 = 1;

/// Contents of the file, as JSON, followed by a line with its CRC-32C.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) format: u32,
    pub(crate) system_identifier: u64,
    pub(crate) major: PgMajor,
    pub(crate) segment_size: SegmentSize,
    /// Last timeline of the store's history; its ancestors are in its history file.
    pub(crate) timeline: TimelineId,
    pub(crate) promised: Fence,
}

impl State {
    pub(crate) const fn new(
        system_identifier: u64,
        major: PgMajor,
        segment_size: SegmentSize,
        timeline: TimelineId,
    ) -> State {
        let promised = Fence::new(timeline);
        State {
            format: FORMAT,
            system_identifier,
            major,
            segment_size,
            timeline,
            promised,
        }
    }

    pub(crate) fn exists(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    pub(crate) fn load(dir: &Path) -> Result<State, OpenError> {
        let path = dir.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::NotAStore {
                    dir: dir.to_owned(),
                });
            }
            Err(source) => return Err(StoreError::io("reading", &path)(source).into()),
        };
        let bad = |reason: String| OpenError::BadState {
            path: path.clone(),
            reason,
        };
        let (json, crc) = text
            .trim_end()
            .rsplit_once('\n')
            .ok_or_else(|| bad("it has no checksum line".to_owned()))?;
        let expected = format!("crc32c {:08x}", crc32c::crc32c(json.as_bytes()));
        if crc != expected {
            return Err(bad("its checksum does not match".to_owned()));
        }
        let state: State = serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
        if state.format != FORMAT {
            return Err(bad(format!(
                "it has format {}, this program knows {FORMAT}",
                state.format
            )));
        }
        Ok(state)
    }

    pub(crate) fn store(&self, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(FILE);
        let json = serde_json::to_string(self)
            .map_err(|error| StoreError::io("encoding", &path)(error.into()))?;
        let text = format!("{json}\ncrc32c {:08x}\n", crc32c::crc32c(json.as_bytes()));
        replace_durably(dir, FILE, text.as_bytes())
    }
}

/// Puts a file with `bytes` in the place of `name`: after a crash the old or the new one is there,
/// whole.
pub(crate) fn replace_durably(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = dir.join(format!("{name}.tmp"));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(StoreError::io("writing", &temporary))?;
    let path = dir.join(name);
    fs::rename(&temporary, &path).map_err(StoreError::io("renaming to", &path))?;
    sync_dir(dir)
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(StoreError::io("syncing directory", dir))
}
