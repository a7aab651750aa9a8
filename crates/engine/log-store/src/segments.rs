//! Segment files under PostgreSQL's names, so that its tools read them.
//!
//! **Invariant.** A segment file appears under its name at full size and filled with zeros, durably.
//! Writing WAL into it then changes data only, never metadata, so `fdatasync` is all a commit needs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

use pg_page::TimelineHistory;
use pg_types::{Lsn, SegmentSize, TimelineId};
use wal_quorum::{History, TimelineStart};

use crate::error::StoreError;
use crate::state::{replace_durably, sync_dir};

/// The segment files of a store.
#[derive(Debug, Clone)]
pub(crate) struct SegmentDir {
    pub(crate) dir: PathBuf,
    pub(crate) size: SegmentSize,
}

/// The timeline under whose name the bytes of segment `number` are read: the last one that began in
/// it or before. Its file begins with a copy of its parent's bytes.
pub(crate) fn timeline_of_segment(history: &History, size: SegmentSize, number: u64) -> TimelineId {
    let began = |start: &&TimelineStart| size.segment_of(start.begin) <= number;
    let last = history.starts().iter().rev().find(began);
    last.or(history.starts().first())
        .map_or(TimelineId(0), |start| start.timeline)
}

impl SegmentDir {
    pub(crate) fn path(&self, timeline: TimelineId, number: u64) -> PathBuf {
        self.dir.join(self.size.file_name(timeline, number))
    }

    /// Opens a segment for reading and writing, making it of zeros if need be.
    pub(crate) fn open_or_create(
        &self,
        timeline: TimelineId,
        number: u64,
    ) -> Result<File, StoreError> {
        let path = self.path(timeline, number);
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        match open() {
            Ok(file) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create(timeline, number, "create.tmp", &[])?;
                open().map_err(StoreError::io("opening", &path))
            }
            Err(source) => Err(StoreError::io("opening", &path)(source)),
        }
    }

    /// Makes a segment that begins with `head` and goes on with zeros. A file that is there already
    /// stays.
    pub(crate) fn create(
        &self,
        timeline: TimelineId,
        number: u64,
        temporary: &str,
        head: &[u8],
    ) -> Result<(), StoreError> {
        let path = self.path(timeline, number);
        if path.exists() {
            return Ok(());
        }
        let temporary = self.dir.join(temporary);
        let filled = File::create(&temporary).and_then(|mut file| {
            file.write_all(head)?;
            let zeros = vec![0; 1 << 20];
            let mut left = self.size.bytes().saturating_sub(head.len() as u64);
            while left > 0 {
                let chunk = left.min(zeros.len() as u64);
                file.write_all(zeros.get(..chunk as usize).unwrap_or(&zeros))?;
                left -= chunk;
            }
            file.sync_all()
        });
        if let Err(source) = filled {
            // Give the space back; the error that matters is the first one.
            let _ = fs::remove_file(&temporary);
            return Err(StoreError::io("filling", &path)(source));
        }
        // A link, not a rename: two makers of one segment must not replace each other's file.
        let linked = match fs::hard_link(&temporary, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        linked.map_err(StoreError::io("creating", &path))?;
        fs::remove_file(&temporary).map_err(StoreError::io("removing", &temporary))?;
        sync_dir(&self.dir)
    }

    /// Reads WAL of `history` from `from` into `buffer`, at most to the segment's end; returns how
    /// many bytes. Zero when the segment file is not there.
    pub(crate) fn read(
        &self,
        history: &History,
        from: Lsn,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        let number = self.size.segment_of(from);
        let path = self.path(timeline_of_segment(history, self.size, number), number);
        let offset = self.size.offset_of(from);
        let len = (self.size.bytes() - offset).min(buffer.len() as u64) as usize;
        let Some(buffer) = buffer.get_mut(..len) else {
            return Ok(0);
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(StoreError::io("opening", &path)(source)),
        };
        file.read_exact_at(buffer, offset)
            .map_err(StoreError::io("reading", &path))?;
        Ok(len)
    }

    /// Every segment file: timeline and number.
    pub(crate) fn list(&self) -> Result<Vec<(TimelineId, u64)>, StoreError> {
        let mut found = Vec::new();
        let entries = fs::read_dir(&self.dir).map_err(StoreError::io("listing", &self.dir))?;
        for entry in entries {
            let entry = entry.map_err(StoreError::io("listing", &self.dir))?;
            if let Some(segment) = entry
                .file_name()
                .to_str()
                .and_then(|name| self.size.parse_file_name(name))
            {
                found.push(segment);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Start of the oldest segment from which WAL is there without a gap up to `end`.
    pub(crate) fn oldest(&self, history: &History, end: Lsn) -> Result<Lsn, StoreError> {
        let present = self.list()?;
        let mut number = self.size.segment_of(end);
        if self.size.offset_of(end) == 0 && number > 0 {
            number -= 1;
        }
        let there = |number| {
            let timeline = timeline_of_segment(history, self.size, number);
            present.binary_search(&(timeline, number)).is_ok()
        };
        while number > 0 && there(number - 1) {
            number -= 1;
        }
        Ok(self.size.start_of(number))
    }

    /// Removes the segments for which `doomed` holds.
    pub(crate) fn remove(
        &self,
        doomed: impl Fn(TimelineId, u64) -> bool,
    ) -> Result<usize, StoreError> {
        let mut removed = 0;
        for (timeline, number) in self.list()? {
            if doomed(timeline, number) {
                let path = self.path(timeline, number);
                fs::remove_file(&path).map_err(StoreError::io("removing", &path))?;
                removed += 1;
            }
        }
        if removed > 0 {
            sync_dir(&self.dir)?;
        }
        Ok(removed)
    }

    /// The text of `timeline`'s history file; `None` when it has none.
    pub(crate) fn history_text(&self, timeline: TimelineId) -> Result<Option<String>, StoreError> {
        let path = self.dir.join(timeline.history_file_name());
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::io("reading", &path)(source)),
        }
    }

    pub(crate) fn write_history(&self, timeline: TimelineId, text: &str) -> Result<(), StoreError> {
        replace_durably(&self.dir, &timeline.history_file_name(), text.as_bytes())
    }
}

/// The history that `text`, the history file of `timeline`, tells.
pub(crate) fn parse_history(timeline: TimelineId, text: &str) -> Result<History, StoreError> {
    let parsed = TimelineHistory::parse(timeline, text)?;
    let mut begin = Lsn(0);
    let mut starts = Vec::new();
    for entry in parsed.entries() {
        starts.push(TimelineStart {
            timeline: entry.timeline,
            begin,
        });
        begin = entry.switch_lsn;
    }
    starts.push(TimelineStart { timeline, begin });
    Ok(History::new(starts)?)
}

/// The history file of an ancestor `timeline`, out of a descendant's `text`: its first lines.
pub(crate) fn ancestor_text(
    descendant: TimelineId,
    text: &str,
    timeline: TimelineId,
) -> Result<String, StoreError> {
    let parsed = TimelineHistory::parse(descendant, text)?;
    let mut ancestor = String::new();
    for entry in parsed
        .entries()
        .iter()
        .filter(|entry| entry.timeline < timeline)
    {
        ancestor.push_str(&format!(
            "{}\t{}\t{}\n",
            entry.timeline, entry.switch_lsn, entry.reason
        ));
    }
    Ok(ancestor)
}

/// Makes segments ahead of their use, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Preallocator {
    requests: Sender<(TimelineId, u64)>,
}

impl Preallocator {
    pub(crate) fn start(dir: SegmentDir) -> Result<Preallocator, StoreError> {
        let (requests, wanted) = channel::<(TimelineId, u64)>();
        let path = dir.dir.clone();
        std::thread::Builder::new()
            .name("wal-prealloc".to_owned())
            .spawn(move || {
                for (timeline, number) in wanted {
                    if let Err(error) = dir.create(timeline, number, "prealloc.tmp", &[]) {
                        // The writer meets the same failure when it needs the segment, and stops.
                        tracing::warn!(%error, "a WAL segment could not be made ahead of its use");
                    }
                }
            })
            .map_err(StoreError::io("starting a thread for", path))?;
        Ok(Preallocator { requests })
    }

    pub(crate) fn request(&self, timeline: TimelineId, number: u64) {
        // The thread ends only with the store.
        let _ = self.requests.send((timeline, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_keep_their_lines() {
        let text = "1\t0/3000000\tfirst\n2\t0/5000100\tsecond\n";
        let history = parse_history(TimelineId(3), text).unwrap();
        let begins: Vec<_> = history
            .starts()
            .iter()
            .map(|it| (it.timeline.0, it.begin.0))
            .collect();
        assert_eq!(begins, [(1, 0), (2, 0x300_0000), (3, 0x500_0100)]);
        let parent = ancestor_text(TimelineId(3), text, TimelineId(2)).unwrap();
        assert_eq!(parent, "1\t0/3000000\tfirst\n");
        assert_eq!(
            parse_history(TimelineId(2), &parent).unwrap(),
            history.until(TimelineId(2)).unwrap()
        );
        assert_eq!(
            timeline_of_segment(&history, SegmentSize::DEFAULT, 5),
            TimelineId(3)
        );
        assert_eq!(
            timeline_of_segment(&history, SegmentSize::DEFAULT, 4),
            TimelineId(2)
        );
    }
}
