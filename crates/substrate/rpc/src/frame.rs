//! The frame's header and its bounds.

use std::io::{Read, Write};

/// Version of the frame format, in every header.
pub const FRAME_VERSION: u16 = 1;

/// Bytes of an encoded [`FrameHeader`].
pub const FRAME_HEADER_LEN: usize = 16;

/// Longest JSON text of a frame, in bytes.
pub const MAX_JSON_LEN: u32 = 256 << 20;

/// Longest attachment of a frame, in bytes.
pub const MAX_ATTACHMENT_LEN: u32 = 64 << 20;

const MAGIC: [u8; 4] = *b"SLRP";

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A request, from client to server.
    Request,
    /// The answer to the connection's oldest unanswered request.
    Response,
    /// The server could not read the request; the JSON is a string saying why.
    Failure,
}

/// The first 16 bytes of every frame: `magic [4] version u16 kind u16 json_len u32 attachment_len u32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Bytes of JSON after the header.
    pub json_len: u32,
    /// Bytes of attachment after the JSON.
    pub attachment_len: u32,
}

/// A frame that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed or ended within a frame.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer does not speak this protocol.
    #[error(
        "the peer does not speak Strandline's control protocol (frame begins with {found:02x?})"
    )]
    BadMagic {
        /// The bytes in the magic's place.
        found: [u8; 4],
    },
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {found} of the control protocol, this program version {FRAME_VERSION}"
    )]
    BadVersion {
        /// The version in the frame.
        found: u16,
    },
    /// A frame kind that does not exist.
    #[error("unknown frame kind {found}")]
    BadKind {
        /// The kind in the frame.
        found: u16,
    },
    /// A length beyond its bound.
    #[error("{part} of {len} bytes is longer than the allowed {max}")]
    TooLong {
        /// `JSON` or `attachment`.
        part: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The bound in bytes.
        max: u32,
    },
}

impl FrameHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_LEN] {
        let kind: u16 = match self.kind {
            FrameKind::Request => 1,
            FrameKind::Response => 2,
            FrameKind::Failure => 3,
        };
        let [m0, m1, m2, m3] = MAGIC;
        let [v0, v1] = FRAME_VERSION.to_le_bytes();
        let [k0, k1] = kind.to_le_bytes();
        let [j0, j1, j2, j3] = self.json_len.to_le_bytes();
        let [a0, a1, a2, a3] = self.attachment_len.to_le_bytes();
        [
            m0, m1, m2, m3, v0, v1, k0, k1, j0, j1, j2, j3, a0, a1, a2, a3,
        ]
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// Every [`FrameError`] but `Io`.
    pub fn decode(bytes: [u8; FRAME_HEADER_LEN]) -> Result<FrameHeader, FrameError> {
        let [
            m0,
            m1,
            m2,
            m3,
            v0,
            v1,
            k0,
            k1,
            j0,
            j1,
            j2,
            j3,
            a0,
            a1,
            a2,
            a3,
        ] = bytes;
        let found = [m0, m1, m2, m3];
        if found != MAGIC {
            return Err(FrameError::BadMagic { found });
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != FRAME_VERSION {
            return Err(FrameError::BadVersion { found: version });
        }
        let kind = match u16::from_le_bytes([k0, k1]) {
            1 => FrameKind::Request,
            2 => FrameKind::Response,
            3 => FrameKind::Failure,
            found => return Err(FrameError::BadKind { found }),
        };
        let json_len = u32::from_le_bytes([j0, j1, j2, j3]);
        let attachment_len = u32::from_le_bytes([a0, a1, a2, a3]);
        bounded("JSON", json_len as usize, MAX_JSON_LEN)?;
        bounded("attachment", attachment_len as usize, MAX_ATTACHMENT_LEN)?;
        Ok(FrameHeader {
            kind,
            json_len,
            attachment_len,
        })
    }
}

fn bounded(part: &'static str, len: usize, max: u32) -> Result<u32, FrameError> {
    match u32::try_from(len) {
        Ok(len) if len <= max => Ok(len),
        _ => Err(FrameError::TooLong {
            part,
            len: len as u64,
            max,
        }),
    }
}

/// Writes one frame and flushes it.
pub(crate) fn write_frame(
    to: &mut impl Write,
    kind: FrameKind,
    json: &[u8],
    attachment: &[u8],
) -> Result<(), FrameError> {
    let json_len = bounded("JSON", json.len(), MAX_JSON_LEN)?;
    let attachment_len = bounded("attachment", attachment.len(), MAX_ATTACHMENT_LEN)?;
    let header = FrameHeader {
        kind,
        json_len,
        attachment_len,
    }
    .encode();
    // One write for header and JSON: two small packets would wait for each other's acknowledgement.
    let mut head = Vec::with_capacity(FRAME_HEADER_LEN + json.len());
    head.extend_from_slice(&header);
    head.extend_from_slice(json);
    to.write_all(&head)?;
    to.write_all(attachment)?;
    to.flush()?;
    Ok(())
}

/// A frame's kind, JSON and attachment.
pub(crate) type Frame = (FrameKind, Vec<u8>, Vec<u8>);

/// Reads one frame; `None` when the connection ended between frames.
pub(crate) fn read_frame(from: &mut impl Read) -> Result<Option<Frame>, FrameError> {
    let mut bytes = [0; FRAME_HEADER_LEN];
    let (first, rest) = bytes.split_at_mut(1);
    loop {
        match from.read(first) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    from.read_exact(rest)?;
    let header = FrameHeader::decode(bytes)?;
    let json = read_exactly(from, header.json_len)?;
    let attachment = read_exactly(from, header.attachment_len)?;
    Ok(Some((header.kind, json, attachment)))
}

/// Reads `len` bytes, allocating only as they arrive.
fn read_exactly(from: &mut impl Read, len: u32) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::with_capacity((len as usize).min(1 << 20));
    let read = from.take(u64::from(len)).read_to_end(&mut bytes)?;
    if read < len as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_round_trip(json in prop::collection::vec(any::<u8>(), 0..200), attachment in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, FrameKind::Response, &json, &attachment).unwrap();
            let read = read_frame(&mut bytes.as_slice()).unwrap();
            prop_assert_eq!(read, Some((FrameKind::Response, json, attachment)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_frame(&mut bytes.as_slice());
        }

        #[test]
        fn a_cut_frame_is_an_error(cut in 1usize..40) {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, FrameKind::Request, &[7; 20], &[8; 20]).unwrap();
            bytes.truncate(cut);
            prop_assert!(read_frame(&mut bytes.as_slice()).is_err());
        }
    }

    #[test]
    fn bounds_are_checked_before_allocation() {
        let header = FrameHeader {
            kind: FrameKind::Request,
            json_len: MAX_JSON_LEN + 1,
            attachment_len: 0,
        };
        assert!(matches!(
            FrameHeader::decode(header.encode()),
            Err(FrameError::TooLong { part: "JSON", .. })
        ));
    }
}
