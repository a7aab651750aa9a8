//! Cutting a byte stream into messages.

use crate::ProtoError;

/// Longest message accepted unless the caller says otherwise, in bytes.
pub const DEFAULT_MESSAGE_LIMIT: u32 = 64 << 20;

/// Consumed bytes at the front are kept until there are this many, so that a stream of small
/// messages does not move the buffer for each of them.
const COMPACT_AT: usize = 256 << 10;

/// One message: its type byte and its body, without the length word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMessage<'a> {
    /// The type byte.
    pub tag: u8,
    /// What follows the length word.
    pub body: &'a [u8],
}

/// Received bytes that have not been decoded yet.
#[derive(Debug)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    limit: u32,
}

impl Inbox {
    /// An empty inbox that refuses messages longer than `limit` bytes.
    #[must_use]
    pub const fn new(limit: u32) -> Inbox {
        Inbox {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            limit,
        }
    }

    /// At least `min` bytes of room to receive into; say with [`Inbox::received`] how many were used.
    pub fn space(&mut self, min: usize) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.start >= COMPACT_AT {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let needed = self.end + min;
        if self.buffer.len() < needed {
            self.buffer.resize(needed.next_multiple_of(8192), 0);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// The first `len` bytes of [`Inbox::space`] hold received bytes.
    pub fn received(&mut self, len: usize) {
        self.end = (self.end + len).min(self.buffer.len());
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let space = self.space(bytes.len());
        if let Some(space) = space.get_mut(..bytes.len()) {
            space.copy_from_slice(bytes);
        }
        self.received(bytes.len());
    }

    /// Whether no undecoded byte is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Type byte of the next message, whole or not.
    #[must_use]
    pub fn next_tag(&self) -> Option<u8> {
        self.buffer.get(self.start..self.end)?.first().copied()
    }

    /// Whether [`Inbox::next_message`] would give a message now.
    ///
    /// # Errors
    /// [`ProtoError::BadLength`].
    pub fn has_message(&self) -> Result<bool, ProtoError> {
        let pending = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((&[tag, l0, l1, l2, l3], _)) = pending.split_first_chunk::<5>() else {
            return Ok(false);
        };
        let len = self.checked(tag, u32::from_be_bytes([l0, l1, l2, l3]))?;
        Ok(pending.len() > len)
    }

    /// The next whole message; `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`ProtoError::BadLength`]; the stream cannot be followed beyond it.
    pub fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, ProtoError> {
        let pending = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((&[tag, l0, l1, l2, l3], _)) = pending.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let len = self.checked(tag, u32::from_be_bytes([l0, l1, l2, l3]))?;
        if self.end - self.start <= len {
            return Ok(None);
        }
        let body = self.start + 5..self.start + 1 + len;
        self.start = body.end;
        Ok(Some(RawMessage {
            tag,
            body: self.buffer.get(body).unwrap_or_default(),
        }))
    }

    /// The body of the next start-up packet, which has no type byte; `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`ProtoError::BadLength`].
    pub fn next_startup(&mut self) -> Result<Option<&[u8]>, ProtoError> {
        let pending = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((word, _)) = pending.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes(*word);
        let limit = crate::startup::MAX_STARTUP_LEN;
        if !(8..=limit).contains(&len) {
            return Err(ProtoError::BadLength {
                tag: '\0',
                len,
                limit,
            });
        }
        let len = len as usize;
        if self.end - self.start < len {
            return Ok(None);
        }
        let body = self.start + 4..self.start + len;
        self.start = body.end;
        Ok(Some(self.buffer.get(body).unwrap_or_default()))
    }

    const fn checked(&self, tag: u8, len: u32) -> Result<usize, ProtoError> {
        if len < 4 || len > self.limit {
            return Err(ProtoError::BadLength {
                tag: tag as char,
                len,
                limit: self.limit,
            });
        }
        Ok(len as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_messages(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            piece in 1usize..64,
        ) {
            let mut bytes = Vec::new();
            for body in &bodies {
                crate::wire::message(&mut bytes, b'd', |out| out.extend_from_slice(body));
            }
            let mut inbox = Inbox::new(DEFAULT_MESSAGE_LIMIT);
            let mut seen = Vec::new();
            for piece in bytes.chunks(piece) {
                inbox.push(piece);
                while let Some(message) = inbox.next_message().unwrap() {
                    prop_assert_eq!(message.tag, b'd');
                    seen.push(message.body.to_vec());
                }
            }
            prop_assert_eq!(seen, bodies);
            prop_assert!(inbox.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut inbox = Inbox::new(1000);
            inbox.push(&bytes);
            while let Ok(Some(_)) = inbox.next_message() {}
            let mut inbox = Inbox::new(1000);
            inbox.push(&bytes);
            while let Ok(Some(_)) = inbox.next_startup() {}
        }
    }

    #[test]
    fn lengths_are_bounded() {
        for len in [0u32, 3, 101, u32::MAX] {
            let mut inbox = Inbox::new(100);
            inbox.push(b"Q");
            inbox.push(&len.to_be_bytes());
            let expected = ProtoError::BadLength {
                tag: 'Q',
                len,
                limit: 100,
            };
            assert_eq!(inbox.next_message(), Err(expected));
        }
    }
}
