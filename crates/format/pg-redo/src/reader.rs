//! A little-endian reader over the data of a record.
//!
//! **Invariant.** Every read yields the field or names the data that ended too early; nothing is
//! read past the record.

use crate::RedoFault;

/// The part of a record's data that has not been read yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which errors call `what`.
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], RedoFault> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(RedoFault::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], RedoFault> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(RedoFault::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn skip(&mut self, len: usize) -> Result<(), RedoFault> {
        self.take(len).map(|_| ())
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, RedoFault> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, RedoFault> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, RedoFault> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, RedoFault> {
        self.array().map(u64::from_le_bytes)
    }

    /// `count` offset numbers (or other u16).
    pub(crate) fn u16s(&mut self, count: usize) -> Result<U16s<'a>, RedoFault> {
        self.take(count * 2).map(U16s::new)
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails when something is left.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), RedoFault> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(RedoFault::Trailing {
                what: self.what,
                left: left as u32,
            }),
        }
    }
}

/// Numbers of two bytes each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct U16s<'a> {
    bytes: &'a [u8],
}

impl<'a> U16s<'a> {
    /// An odd byte at the end is left out.
    pub(crate) const fn new(bytes: &'a [u8]) -> U16s<'a> {
        U16s { bytes }
    }

    pub(crate) const fn len(self) -> usize {
        self.bytes.len() / 2
    }

    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = u16> + use<'a> {
        self.bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|pair| u16::from_le_bytes(*pair))
    }

    /// The numbers two by two.
    pub(crate) fn pairs(self) -> impl Iterator<Item = (u16, u16)> + use<'a> {
        let pairs = self.bytes.as_chunks::<4>().0.iter();
        pairs.map(|&[a, b, c, d]| (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }
}
