//! Log sequence numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte position in the write-ahead log, PostgreSQL's `XLogRecPtr`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// PostgreSQL's `InvalidXLogRecPtr`.
    pub const INVALID: Lsn = Lsn(0);
    /// Larger than every LSN that can occur.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Whether this is a position at all (not zero).
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// The next multiple of 8 at or after this position: where a record may begin.
    #[must_use]
    pub const fn align8(self) -> Lsn {
        Lsn(self.0.wrapping_add(7) & !7)
    }

    /// This position `bytes` further on; saturates instead of wrapping.
    #[must_use]
    pub const fn advance(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an LSN of the form `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not an LSN; expected two hexadecimal numbers such as 16/B374D848")]
pub struct LsnParseError {
    /// The text that was given.
    pub text: String,
}

impl FromStr for Lsn {
    type Err = LsnParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || LsnParseError {
            text: text.to_owned(),
        };
        let (high, low) = text.split_once('/').ok_or_else(fail)?;
        let high = u32::from_str_radix(high, 16).map_err(|_| fail())?;
        let low = u32::from_str_radix(low, 16).map_err(|_| fail())?;
        Ok(Lsn(u64::from(high) << 32 | u64::from(low)))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
        for bad in ["", "/", "1", "1/2/3", "G/0", "1/100000000"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn alignment_goes_up() {
        assert_eq!(Lsn(8).align8(), Lsn(8));
        assert_eq!(Lsn(9).align8(), Lsn(16));
    }
}
