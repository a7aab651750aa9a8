//! WAL segments and timelines.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Lsn;

/// A PostgreSQL timeline, which is Strandline's fencing epoch too.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TimelineId(pub u32);

impl TimelineId {
    /// The timeline after this one.
    #[must_use]
    pub const fn next(self) -> TimelineId {
        TimelineId(self.0.saturating_add(1))
    }

    /// Name of this timeline's history file, such as `00000002.history`.
    #[must_use]
    pub fn history_file_name(self) -> String {
        format!("{:08X}.history", self.0)
    }
}

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Bytes in a WAL segment file: a power of two from 1 MiB to 1 GiB (`wal_segment_size`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct SegmentSize(u64);

/// A size that no WAL segment can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no WAL segment size; expected a power of two from 1 MiB to 1 GiB")]
pub struct SegmentSizeError(pub u64);

impl SegmentSize {
    /// PostgreSQL's default, 16 MiB.
    pub const DEFAULT: SegmentSize = SegmentSize(16 << 20);

    /// A checked segment size in bytes.
    ///
    /// # Errors
    /// [`SegmentSizeError`] unless it is a power of two from 1 MiB to 1 GiB.
    pub fn new(bytes: u64) -> Result<SegmentSize, SegmentSizeError> {
        if bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes) {
            Ok(SegmentSize(bytes))
        } else {
            Err(SegmentSizeError(bytes))
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Number of the segment that holds the byte at `lsn`.
    #[must_use]
    pub const fn segment_of(self, lsn: Lsn) -> u64 {
        lsn.0 / self.0
    }

    /// Offset of `lsn` in its segment.
    #[must_use]
    pub const fn offset_of(self, lsn: Lsn) -> u64 {
        lsn.0 % self.0
    }

    /// LSN of the first byte of segment `number`.
    #[must_use]
    pub const fn start_of(self, number: u64) -> Lsn {
        Lsn(number.saturating_mul(self.0))
    }

    /// PostgreSQL's name of segment `number` on `timeline`, 24 hexadecimal digits.
    #[must_use]
    pub fn file_name(self, timeline: TimelineId, number: u64) -> String {
        let per_log = (1u64 << 32) / self.0;
        format!(
            "{:08X}{:08X}{:08X}",
            timeline.0,
            number / per_log,
            number % per_log
        )
    }

    /// Timeline and segment number of a file name; `None` when it is not a segment's name.
    #[must_use]
    pub fn parse_file_name(self, name: &str) -> Option<(TimelineId, u64)> {
        if name.len() != 24 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let field = |from: usize| u32::from_str_radix(name.get(from..from + 8)?, 16).ok();
        let (timeline, log, segment) = (field(0)?, field(8)?, field(16)?);
        let per_log = (1u64 << 32) / self.0;
        if u64::from(segment) >= per_log {
            return None;
        }
        Some((
            TimelineId(timeline),
            u64::from(log) * per_log + u64::from(segment),
        ))
    }
}

impl From<SegmentSize> for u64 {
    fn from(size: SegmentSize) -> u64 {
        size.0
    }
}

impl TryFrom<u64> for SegmentSize {
    type Error = SegmentSizeError;

    fn try_from(bytes: u64) -> Result<SegmentSize, SegmentSizeError> {
        SegmentSize::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let size = SegmentSize::DEFAULT;
        assert_eq!(size.file_name(TimelineId(1), 1), "000000010000000000000001");
        for number in [0, 1, 255, 256, 70_000] {
            let name = size.file_name(TimelineId(0x2A), number);
            assert_eq!(
                size.parse_file_name(&name),
                Some((TimelineId(0x2A), number))
            );
        }
        for bad in [
            "",
            "000000010000000000000100",
            "00000001.history",
            "0000000100000000000000zz",
        ] {
            assert_eq!(size.parse_file_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_powers_of_two_are_sizes() {
        assert!(SegmentSize::new(1 << 20).is_ok());
        assert!(SegmentSize::new(3 << 20).is_err());
        assert!(SegmentSize::new(1 << 31).is_err());
        assert!(SegmentSize::new(0).is_err());
    }
}
