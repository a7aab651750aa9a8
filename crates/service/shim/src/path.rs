//! Which fork (or SLRU) and segment a path names, and the path of one.
//!
//! **Invariant.** Only names that PostgreSQL gives to permanent relation and SLRU segments are
//! recognised, to the letter; a temporary relation (`t3_16384`), a sort file or `pg_filenode.map` is
//! never governed. Pure, and free of the heap.

use std::fmt::{self, Write};

/// Blocks in a relation's segment file.
pub const RELATION_SEGMENT_BLOCKS: u32 = 131_072;
/// Pages in an SLRU's segment file.
pub const SLRU_SEGMENT_PAGES: u32 = 32;
/// Tablespace `pg_default`.
const DEFAULT_TABLESPACE: u32 = 1663;
/// Tablespace `pg_global`.
const GLOBAL_TABLESPACE: u32 = 1664;

const SLRU_DIRECTORIES: [(&str, u32); 4] = [
    ("pg_xact/", 1),
    ("pg_multixact/offsets/", 2),
    ("pg_multixact/members/", 3),
    ("pg_commit_ts/", 4),
];

/// A segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentName {
    /// Tablespace; zero for an SLRU.
    pub space: u32,
    /// Database.
    pub db: u32,
    /// Relation file number, or SLRU.
    pub rel: u32,
    /// Fork.
    pub fork: u32,
    /// Segment.
    pub segment: u32,
}

/// Takes a canonical decimal number (no sign, no leading zero but "0" itself) off the front.
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (front, rest) = text.split_at_checked(digits)?;
    if front.is_empty() || front.len() > 10 || (front.len() > 1 && front.first() == Some(&b'0')) {
        return None;
    }
    let value = front
        .iter()
        .fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some((u32::try_from(value).ok()?, rest))
}

fn slash(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"/")
}

/// `REL[_fork][.segment]` to the end of the path.
fn relation_file(space: u32, db: u32, text: &[u8]) -> Option<SegmentName> {
    let (rel, rest) = number(text)?;
    let (fork, rest) = [(&b"_fsm"[..], 1), (b"_vm", 2), (b"_init", 3)]
        .iter()
        .find_map(|(suffix, fork)| rest.strip_prefix(*suffix).map(|rest| (*fork, rest)))
        .unwrap_or((0, rest));
    let segment = match rest.strip_prefix(b".") {
        None if rest.is_empty() => 0,
        None => return None,
        Some(text) => match number(text)? {
            (segment, []) if segment > 0 => segment,
            _ => return None,
        },
    };
    // Beyond this the block number would not fit 32 bits.
    (segment < u32::MAX / RELATION_SEGMENT_BLOCKS).then_some(SegmentName {
        space,
        db,
        rel,
        fork,
        segment,
    })
}

fn slru_file(slru: u32, text: &[u8]) -> Option<SegmentName> {
    if !(4..=6).contains(&text.len()) {
        return None;
    }
    let mut segment = 0u32;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        segment = segment * 16 + u32::from(digit);
    }
    Some(SegmentName {
        space: 0,
        db: 0,
        rel: slru,
        fork: 0,
        segment,
    })
}

/// The segment that `path`, relative to the data directory, names.
#[must_use]
pub fn parse(path: &[u8]) -> Option<SegmentName> {
    let path = path.strip_prefix(b"./").unwrap_or(path);
    if let Some(rest) = path.strip_prefix(b"base/") {
        let (db, rest) = number(rest)?;
        return relation_file(DEFAULT_TABLESPACE, db, slash(rest)?);
    }
    if let Some(rest) = path.strip_prefix(b"global/") {
        return relation_file(GLOBAL_TABLESPACE, 0, rest);
    }
    if let Some(rest) = path.strip_prefix(b"pg_tblspc/") {
        let (space, rest) = number(rest)?;
        let version = slash(rest)?;
        let rest = version.strip_prefix(b"PG_")?;
        let end = rest.iter().position(|byte| *byte == b'/')?;
        let (db, rest) = number(rest.get(end + 1..)?)?;
        return relation_file(space, db, slash(rest)?);
    }
    SLRU_DIRECTORIES
        .iter()
        .find_map(|(directory, slru)| slru_file(*slru, path.strip_prefix(directory.as_bytes())?))
}

/// A path composed on the stack, NUL-terminated.
pub struct PathBuffer {
    bytes: [u8; 1280],
    len: usize,
}

impl Write for PathBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
    }
}

impl PathBuffer {
    fn push(&mut self, text: &[u8]) -> fmt::Result {
        // One byte stays zero behind the text.
        if self.len + text.len() >= self.bytes.len() {
            return Err(fmt::Error);
        }
        self.bytes
            .get_mut(self.len..self.len + text.len())
            .ok_or(fmt::Error)?
            .copy_from_slice(text);
        self.len += text.len();
        Ok(())
    }

    /// For the C library.
    #[must_use]
    pub fn as_ptr(&self) -> *const libc::c_char {
        self.bytes.as_ptr().cast()
    }

    /// The path of `name` below `directory` (or relative, when it is empty). `version` is the
    /// tablespaces' version directory. `None` when it does not fit or the name is no segment's.
    #[must_use]
    pub fn of(name: &SegmentName, directory: &[u8], version: &str) -> Option<PathBuffer> {
        let mut path = PathBuffer {
            bytes: [0; 1280],
            len: 0,
        };
        if !directory.is_empty() {
            path.push(directory).ok()?;
            path.push(b"/").ok()?;
        }
        let SegmentName {
            space,
            db,
            rel,
            fork,
            segment,
        } = *name;
        match space {
            0 => {
                let (directory, _) = SLRU_DIRECTORIES.iter().find(|(_, slru)| *slru == rel)?;
                write!(path, "{directory}{segment:04X}").ok()?;
                return Some(path);
            }
            DEFAULT_TABLESPACE => write!(path, "base/{db}/{rel}").ok()?,
            GLOBAL_TABLESPACE => write!(path, "global/{rel}").ok()?,
            _ => write!(path, "pg_tblspc/{space}/{version}/{db}/{rel}").ok()?,
        }
        path.push(["", "_fsm", "_vm", "_init"].get(fork as usize)?.as_bytes())
            .ok()?;
        if segment > 0 {
            write!(path, ".{segment}").ok()?;
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(space: u32, db: u32, rel: u32, fork: u32, segment: u32) -> SegmentName {
        SegmentName {
            space,
            db,
            rel,
            fork,
            segment,
        }
    }

    #[test]
    fn segment_names_are_read_and_written_alike() {
        for (text, expected) in [
            ("base/5/16384", name(1663, 5, 16384, 0, 0)),
            ("base/5/16384.1", name(1663, 5, 16384, 0, 1)),
            ("base/5/16384_fsm", name(1663, 5, 16384, 1, 0)),
            ("base/5/16384_vm.12", name(1663, 5, 16384, 2, 12)),
            ("base/5/16384_init", name(1663, 5, 16384, 3, 0)),
            (
                "base/4294967295/4294967295",
                name(1663, u32::MAX, u32::MAX, 0, 0),
            ),
            ("global/1262", name(1664, 0, 1262, 0, 0)),
            (
                "pg_tblspc/16400/PG_15_202209061/5/16401_vm",
                name(16400, 5, 16401, 2, 0),
            ),
            ("pg_xact/0000", name(0, 0, 1, 0, 0)),
            ("pg_multixact/offsets/00FF", name(0, 0, 2, 0, 255)),
            ("pg_multixact/members/14078", name(0, 0, 3, 0, 0x14078)),
            ("pg_commit_ts/000A", name(0, 0, 4, 0, 10)),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
            let written = PathBuffer::of(&expected, b"", "PG_15_202209061").unwrap();
            assert_eq!(&written.bytes[..written.len], text.as_bytes());
            let below = PathBuffer::of(&expected, b"/data", "PG_15_202209061").unwrap();
            assert_eq!(
                &below.bytes[..below.len],
                format!("/data/{text}").as_bytes()
            );
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        for text in [
            "base/5/t3_16384",
            "base/5/pg_filenode.map",
            "base/5/16384_fsm2",
            "base/5/16384.0",
            "base/5/16384.",
            "base/5/016384",
            "base/5",
            "base/5/",
            "base/5/16384/x",
            "base/x/1",
            "base/5/99999999999",
            "base/pgsql_tmp/pgsql_tmp1.0",
            "global/pg_control",
            "global/",
            "pg_xact/000",
            "pg_xact/00000000",
            "pg_xact/000g",
            "pg_multixact/0000",
            "pg_wal/0000",
            "pg_tblspc/16400/5/16401",
            "base/5/1.40000",
            "/base/5/1",
            "",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
