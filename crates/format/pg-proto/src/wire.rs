//! Reading and writing the protocol's field types: big-endian integers and NUL-terminated strings.

use pg_types::Lsn;

use crate::ProtoError;

/// A checked reader of one message's body.
pub(crate) struct Fields<'a> {
    tag: char,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(tag: u8, bytes: &'a [u8]) -> Fields<'a> {
        Fields {
            tag: tag as char,
            bytes,
        }
    }

    const fn cut(&self, field: &'static str) -> ProtoError {
        ProtoError::Truncated {
            tag: self.tag,
            field,
        }
    }

    pub(crate) const fn bad(&self, field: &'static str, value: i64) -> ProtoError {
        ProtoError::BadField {
            tag: self.tag,
            field,
            value,
        }
    }

    pub(crate) const fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Everything that is left.
    pub(crate) const fn rest(&mut self) -> &'a [u8] {
        let rest = self.bytes;
        self.bytes = &[];
        rest
    }

    pub(crate) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], ProtoError> {
        let (head, tail) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| self.cut(field))?;
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProtoError> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or_else(|| self.cut(field))?;
        self.bytes = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, ProtoError> {
        self.array(field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, ProtoError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn i16(&mut self, field: &'static str) -> Result<i16, ProtoError> {
        self.array(field).map(i16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, ProtoError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, ProtoError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, ProtoError> {
        self.array(field).map(i64::from_be_bytes)
    }

    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, ProtoError> {
        self.array(field)
            .map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a str, ProtoError> {
        let end = self
            .bytes
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| self.cut(field))?;
        let text = self.take(end, field)?;
        self.take(1, field)?;
        std::str::from_utf8(text).map_err(|_| ProtoError::NotText {
            tag: self.tag,
            field,
        })
    }

    /// Checks that nothing is left.
    pub(crate) const fn end(&self) -> Result<(), ProtoError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(ProtoError::TrailingBytes {
                tag: self.tag,
                extra: self.bytes.len(),
            })
        }
    }
}

/// Appends a message: type byte, length, and what `body` writes.
pub(crate) fn message(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    length_prefixed(out, body);
}

/// Appends a length word that counts itself and what `body` writes.
pub(crate) fn length_prefixed(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    // A length beyond 4 GiB cannot be said in this protocol; the peer refuses the maximum.
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(word) = out.get_mut(start..start + 4) {
        word.copy_from_slice(&len.to_be_bytes());
    }
}

/// Appends a NUL-terminated string; a NUL within it would end it early, so it is cut there.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = text.split('\0').next().unwrap_or_default();
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}
