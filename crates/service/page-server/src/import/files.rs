//! What there is in a data directory besides SLRUs: relation files, databases, tablespaces, relation
//! maps, prepared transactions, replication origins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cluster_state::StateChange;
use pg_page::relation_map::{RELATION_MAP_FILE_NAME, RelationMap};
use pg_page::replication_origin::{REPLICATION_ORIGINS_PATH, ReplicationOrigins};
use pg_page::two_phase::{TWO_PHASE_DIRECTORY, TwoPhaseState, parse_file_name};
use pg_types::{BLCKSZ, ForkNumber, FullXid, Oid, RELSEG_BLOCKS, RelFileLocator, RelFork};

use super::ImportError;
use super::error::disk;
use super::source::SourceCluster;

/// A segment file of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentFile {
    pub(super) path: PathBuf,
    pub(super) blocks: u32,
}

/// Everything found.
#[derive(Debug, Default)]
pub(super) struct FoundFiles {
    /// Segment files of every fork to import, in order.
    pub(super) forks: BTreeMap<RelFork, Vec<SegmentFile>>,
    /// State that is not in pages.
    pub(super) changes: Vec<StateChange>,
}

impl FoundFiles {
    pub(super) fn bytes(&self) -> u64 {
        let segments = self.forks.values().flatten();
        segments
            .map(|segment| u64::from(segment.blocks) * BLCKSZ as u64)
            .sum()
    }
}

/// Segment files by number, before it is known which are to be imported.
type Segments = BTreeMap<RelFork, BTreeMap<u32, SegmentFile>>;

/// # Errors
/// [`ImportError`] for whatever cannot be read.
pub(super) fn find(source: &SourceCluster) -> Result<FoundFiles, ImportError> {
    let mut found = FoundFiles::default();
    let mut segments = Segments::new();
    let pgdata = &source.pgdata;
    let mut scan = |directory: &Path, spc, db| -> Result<(), ImportError> {
        scan_directory(
            source,
            directory,
            (spc, db),
            &mut segments,
            &mut found.changes,
        )
    };
    scan(&pgdata.join("global"), RelFileLocator::GLOBAL_TABLESPACE, 0)?;
    for (db, directory) in numbered(&pgdata.join("base"))? {
        scan(&directory, RelFileLocator::DEFAULT_TABLESPACE, db)?;
    }
    let mut tablespaces = Vec::new();
    for (oid, link) in numbered(&pgdata.join("pg_tblspc"))? {
        let (location, directory) = tablespace(oid, &link)?;
        tablespaces.push(StateChange::Tablespace {
            oid,
            location: Some(location),
        });
        let directory = directory.join(source.control.major().tablespace_directory());
        if let Err(error) = fs::read_dir(&directory) {
            return Err(ImportError::Tablespace {
                oid,
                path: directory,
                source: error,
            });
        }
        for (db, directory) in numbered(&directory)? {
            scan(&directory, oid, db)?;
        }
    }
    found.changes.extend(tablespaces);
    let unlogged: BTreeSet<RelFileLocator> = segments
        .keys()
        .filter(|fork| fork.fork == ForkNumber::Init)
        .map(|fork| fork.locator)
        .collect();
    for (fork, files) in segments {
        // An unlogged relation is made anew from its init fork, as after a crash.
        if fork.fork == ForkNumber::Init || !unlogged.contains(&fork.locator) {
            found.forks.insert(fork, contiguous(files));
        }
    }
    prepared_transactions(source, &mut found.changes)?;
    replication_origins(source, &mut found.changes)?;
    Ok(found)
}

/// The segments that PostgreSQL itself would read: up to the first that is not full.
fn contiguous(files: BTreeMap<u32, SegmentFile>) -> Vec<SegmentFile> {
    let mut segments = Vec::new();
    for (expected, (number, file)) in (0..).zip(files) {
        if number != expected {
            break;
        }
        let full = file.blocks >= RELSEG_BLOCKS;
        segments.push(file);
        if !full {
            break;
        }
    }
    segments
}

/// Entries of `directory` whose names are numbers.
fn numbered(directory: &Path) -> Result<Vec<(Oid, PathBuf)>, ImportError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).map_err(disk("read", directory))? {
        let entry = entry.map_err(disk("read", directory))?;
        if let Some(oid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            entries.push((oid, entry.path()));
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

/// Location as the cluster knows it (empty inside the data directory), and the directory to read.
fn tablespace(oid: Oid, link: &Path) -> Result<(String, PathBuf), ImportError> {
    let refused = |source| ImportError::Tablespace {
        oid,
        path: link.to_owned(),
        source,
    };
    let metadata = fs::symlink_metadata(link).map_err(refused)?;
    if metadata.is_dir() {
        return Ok((String::new(), link.to_owned()));
    }
    let target = fs::read_link(link).map_err(|source| ImportError::Tablespace {
        oid,
        path: link.to_owned(),
        source,
    })?;
    let location = target.to_str().ok_or_else(|| ImportError::Damaged {
        path: link.to_owned(),
        reason: "it leads to a path that is not UTF-8, which is not supported".to_owned(),
    })?;
    Ok((location.to_owned(), target))
}

fn scan_directory(
    source: &SourceCluster,
    directory: &Path,
    (spc, db): (Oid, Oid),
    segments: &mut Segments,
    changes: &mut Vec<StateChange>,
) -> Result<(), ImportError> {
    if db != 0 {
        changes.push(StateChange::Database {
            spc,
            db,
            exists: true,
        });
    }
    for entry in fs::read_dir(directory).map_err(disk("read", directory))? {
        let entry = entry.map_err(disk("read", directory))?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else {
            continue;
        };
        if name == RELATION_MAP_FILE_NAME {
            let bytes = fs::read(&path).map_err(disk("read", &path))?;
            let map = RelationMap::decode(&bytes, source.control.major()).map_err(|error| {
                ImportError::Damaged {
                    path,
                    reason: error.to_string(),
                }
            })?;
            let bytes = Some(map.encode().into());
            changes.push(StateChange::RelationMap { spc, db, bytes });
        } else if let Some((rel, fork, segment)) = parse_relation_file(name) {
            let length = entry.metadata().map_err(disk("read", &path))?.len();
            // A block that was being appended when the disk filled up does not count.
            let blocks = u32::try_from(length / BLCKSZ as u64).unwrap_or(u32::MAX);
            let fork = RelFork {
                locator: RelFileLocator { spc, db, rel },
                fork,
            };
            segments
                .entry(fork)
                .or_default()
                .insert(segment, SegmentFile { path, blocks });
        }
    }
    Ok(())
}

/// Relation number, fork and segment of names such as `16384`, `16384.2`, `16384_vm` and `16384_fsm.1`;
/// `None` for all other files, temporary relations (`t3_16384`) among them.
fn parse_relation_file(name: &str) -> Option<(Oid, ForkNumber, u32)> {
    let (stem, segment) = match name.split_once('.') {
        Some((stem, segment)) => (stem, number(segment)?),
        None => (name, 0),
    };
    let (rel, fork) = match stem.split_once('_') {
        Some((rel, suffix)) => {
            let fork = ForkNumber::ALL.into_iter().skip(1);
            (
                rel,
                fork.into_iter()
                    .find(|fork| fork.suffix().strip_prefix('_') == Some(suffix))?,
            )
        }
        None => (stem, ForkNumber::Main),
    };
    Some((number(rel)?, fork, segment))
}

/// Digits only: `parse` would take a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn prepared_transactions(
    source: &SourceCluster,
    changes: &mut Vec<StateChange>,
) -> Result<(), ImportError> {
    let directory = source.pgdata.join(TWO_PHASE_DIRECTORY);
    let (major, next) = (source.control.major(), source.control.checkpoint().next_xid);
    for entry in fs::read_dir(&directory).map_err(disk("read", &directory))? {
        let path = entry.map_err(disk("read", &directory))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some((epoch, xid)) = parse_file_name(name, major) else {
            continue;
        };
        let bytes = fs::read(&path).map_err(disk("read", &path))?;
        if let Err(error) = TwoPhaseState::decode_file(&bytes, major) {
            return Err(ImportError::Damaged {
                path,
                reason: error.to_string(),
            });
        }
        // Before 17 the name has no epoch: the id is one before the counter.
        let epoch = epoch.unwrap_or(if xid < next.xid() {
            next.epoch()
        } else {
            next.epoch().wrapping_sub(1)
        });
        let file = Some(bytes.into());
        changes.push(StateChange::TwoPhase {
            xid: FullXid::new(epoch, xid),
            file,
        });
    }
    Ok(())
}

fn replication_origins(
    source: &SourceCluster,
    changes: &mut Vec<StateChange>,
) -> Result<(), ImportError> {
    let path = source.pgdata.join(REPLICATION_ORIGINS_PATH);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(disk("read", &path)(error)),
    };
    let origins = ReplicationOrigins::decode(&bytes).map_err(|error| ImportError::Damaged {
        path,
        reason: error.to_string(),
    })?;
    changes.extend(
        origins
            .origins
            .iter()
            .map(|progress| StateChange::ReplicationOrigin {
                id: progress.origin,
                remote: Some(progress.remote_lsn),
            }),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relation_files_are_told_from_others() {
        assert_eq!(
            parse_relation_file("16384"),
            Some((16_384, ForkNumber::Main, 0))
        );
        assert_eq!(
            parse_relation_file("16384.12"),
            Some((16_384, ForkNumber::Main, 12))
        );
        assert_eq!(
            parse_relation_file("16384_vm"),
            Some((16_384, ForkNumber::Vm, 0))
        );
        assert_eq!(
            parse_relation_file("16384_fsm.1"),
            Some((16_384, ForkNumber::Fsm, 1))
        );
        assert_eq!(
            parse_relation_file("16384_init"),
            Some((16_384, ForkNumber::Init, 0))
        );
        for other in [
            "t3_16384",
            "t3_16384_fsm",
            "PG_VERSION",
            "pg_internal.init",
            "pg_internal.init.77",
            "",
            "16384_",
            "16384_main",
            "16384.x",
            "+5",
            "16384.",
            "pgsql_tmp",
        ] {
            assert_eq!(parse_relation_file(other), None, "{other}");
        }
    }
}
