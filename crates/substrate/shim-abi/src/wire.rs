//! The page wire: GetPage@LSN requests and replies.
//!
//! The client sends one [`Hello`], the server answers with one [`HelloReply`]; then the client sends
//! [`GetPages`] requests without waiting (pipelining), and the server sends, for each requested block,
//! one [`PageReply`] header followed by `payload` bytes. Replies to different requests may come in any
//! order and replies within a request too; each echoes request id, key, block and LSN, and the client
//! checks every one of them. All integers are little-endian; every struct is [`FRAME_BYTES`] long.

/// Bytes of every fixed frame.
pub const FRAME_BYTES: usize = 48;
/// `SLPG` in little-endian bytes, first in every frame.
pub const WIRE_MAGIC: u32 = u32::from_le_bytes(*b"SLPG");
/// Protocol version.
pub const WIRE_VERSION: u16 = 1;
/// Most blocks one request may ask for.
pub const MAX_BLOCKS: u16 = 128;
/// Most requests a client may have outstanding.
pub const MAX_OUTSTANDING: usize = 64;

/// `op` of a [`Hello`].
pub const OP_HELLO: u8 = 1;
/// `op` of a [`HelloReply`].
pub const OP_HELLO_REPLY: u8 = 2;
/// `op` of a [`GetPages`].
pub const OP_GET_PAGES: u8 = 3;
/// `op` of a [`PageReply`].
pub const OP_PAGE: u8 = 4;

/// The page follows (8192 bytes).
pub const STATUS_PAGE: u8 = 0;
/// The page is all zeros; nothing follows.
pub const STATUS_ZERO: u8 = 1;
/// The server cannot answer now (still starting, still ingesting); ask again. A message may follow.
pub const STATUS_RETRY: u8 = 2;
/// The read failed for good (corrupt layer, LSN no longer kept); a UTF-8 message follows.
pub const STATUS_ERROR: u8 = 3;

/// First frame of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// System identifier of the client's cluster; the server refuses another one's.
    pub system_identifier: u64,
    /// The LSN the client is going to read at.
    pub lsn: u64,
}

/// Answer to [`Hello`]. `status` is [`STATUS_PAGE`] for welcome, [`STATUS_RETRY`] or [`STATUS_ERROR`]
/// with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloReply {
    /// Welcome, retry or error.
    pub status: u8,
    /// Bytes of message that follow.
    pub payload: u32,
    /// The server's system identifier.
    pub system_identifier: u64,
}

/// Asks for `count` blocks from `first_block` on, at `lsn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetPages {
    /// Chosen by the client; echoed.
    pub request_id: u64,
    /// Tablespace; zero for an SLRU.
    pub space: u32,
    /// Database.
    pub db: u32,
    /// Relation file number, or SLRU.
    pub rel: u32,
    /// Fork.
    pub fork: u8,
    /// First block.
    pub first_block: u32,
    /// Blocks, 1 to [`MAX_BLOCKS`].
    pub count: u16,
    /// LSN to read at.
    pub lsn: u64,
}

/// Header of one page's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageReply {
    /// From the request.
    pub request_id: u64,
    /// From the request.
    pub space: u32,
    /// From the request.
    pub db: u32,
    /// From the request.
    pub rel: u32,
    /// From the request.
    pub fork: u8,
    /// The block.
    pub block: u32,
    /// One of the `STATUS_` values.
    pub status: u8,
    /// Bytes that follow this header.
    pub payload: u32,
    /// From the request.
    pub lsn: u64,
}

/// Why a frame was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// The magic is not [`WIRE_MAGIC`].
    Magic(u32),
    /// The version is not [`WIRE_VERSION`].
    Version(u16),
    /// Another operation was expected.
    Op(u8),
}

// Frame layout, common part: magic u32@0, version u16@4, op u8@6, status-or-fork u8@7.

fn begin(op: u8, byte7: u8) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[0..4].copy_from_slice(&WIRE_MAGIC.to_le_bytes());
    frame[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    frame[6] = op;
    frame[7] = byte7;
    frame
}

fn check(frame: &[u8; FRAME_BYTES], op: u8) -> Result<(), WireError> {
    let magic = get_u32(frame, 0);
    if magic != WIRE_MAGIC {
        return Err(WireError::Magic(magic));
    }
    let version = u16::from_le_bytes([frame[4], frame[5]]);
    if version != WIRE_VERSION {
        return Err(WireError::Version(version));
    }
    if frame[6] != op {
        return Err(WireError::Op(frame[6]));
    }
    Ok(())
}

fn get_u32(frame: &[u8; FRAME_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

fn get_u64(frame: &[u8; FRAME_BYTES], at: usize) -> u64 {
    u64::from(get_u32(frame, at)) | u64::from(get_u32(frame, at + 4)) << 32
}

fn put(frame: &mut [u8; FRAME_BYTES], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Hello {
    /// The frame: system identifier u64@8, lsn u64@16.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = begin(OP_HELLO, 0);
        put(&mut frame, 8, &self.system_identifier.to_le_bytes());
        put(&mut frame, 16, &self.lsn.to_le_bytes());
        frame
    }

    /// Reads [`Hello::encode`]'s frame.
    ///
    /// # Errors
    /// [`WireError`] when it is another frame.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<Hello, WireError> {
        check(frame, OP_HELLO)?;
        Ok(Hello {
            system_identifier: get_u64(frame, 8),
            lsn: get_u64(frame, 16),
        })
    }
}

impl HelloReply {
    /// The frame: status u8@7, system identifier u64@8, payload u32@16.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = begin(OP_HELLO_REPLY, self.status);
        put(&mut frame, 8, &self.system_identifier.to_le_bytes());
        put(&mut frame, 16, &self.payload.to_le_bytes());
        frame
    }

    /// Reads [`HelloReply::encode`]'s frame.
    ///
    /// # Errors
    /// [`WireError`] when it is another frame.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<HelloReply, WireError> {
        check(frame, OP_HELLO_REPLY)?;
        Ok(HelloReply {
            status: frame[7],
            system_identifier: get_u64(frame, 8),
            payload: get_u32(frame, 16),
        })
    }
}

impl GetPages {
    /// The frame: fork u8@7, request id u64@8, space, db, rel, first block u32@16.., count u16@32, lsn u64@40.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = begin(OP_GET_PAGES, self.fork);
        put(&mut frame, 8, &self.request_id.to_le_bytes());
        put(&mut frame, 16, &self.space.to_le_bytes());
        put(&mut frame, 20, &self.db.to_le_bytes());
        put(&mut frame, 24, &self.rel.to_le_bytes());
        put(&mut frame, 28, &self.first_block.to_le_bytes());
        put(&mut frame, 32, &self.count.to_le_bytes());
        put(&mut frame, 40, &self.lsn.to_le_bytes());
        frame
    }

    /// Reads [`GetPages::encode`]'s frame.
    ///
    /// # Errors
    /// [`WireError`] when it is another frame.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<GetPages, WireError> {
        check(frame, OP_GET_PAGES)?;
        Ok(GetPages {
            request_id: get_u64(frame, 8),
            space: get_u32(frame, 16),
            db: get_u32(frame, 20),
            rel: get_u32(frame, 24),
            fork: frame[7],
            first_block: get_u32(frame, 28),
            count: u16::from_le_bytes([frame[32], frame[33]]),
            lsn: get_u64(frame, 40),
        })
    }
}

impl PageReply {
    /// The frame: fork u8@7, request id u64@8, space, db, rel, block u32@16.., payload u32@32, status u8@36, lsn u64@40.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut frame = begin(OP_PAGE, self.fork);
        put(&mut frame, 8, &self.request_id.to_le_bytes());
        put(&mut frame, 16, &self.space.to_le_bytes());
        put(&mut frame, 20, &self.db.to_le_bytes());
        put(&mut frame, 24, &self.rel.to_le_bytes());
        put(&mut frame, 28, &self.block.to_le_bytes());
        put(&mut frame, 32, &self.payload.to_le_bytes());
        frame[36] = self.status;
        put(&mut frame, 40, &self.lsn.to_le_bytes());
        frame
    }

    /// Reads [`PageReply::encode`]'s frame.
    ///
    /// # Errors
    /// [`WireError`] when it is another frame.
    pub fn decode(frame: &[u8; FRAME_BYTES]) -> Result<PageReply, WireError> {
        check(frame, OP_PAGE)?;
        Ok(PageReply {
            request_id: get_u64(frame, 8),
            space: get_u32(frame, 16),
            db: get_u32(frame, 20),
            rel: get_u32(frame, 24),
            fork: frame[7],
            block: get_u32(frame, 28),
            payload: get_u32(frame, 32),
            status: frame[36],
            lsn: get_u64(frame, 40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let hello = Hello {
            system_identifier: u64::MAX - 1,
            lsn: 0x1234_5678_9ABC,
        };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let reply = HelloReply {
            status: STATUS_ERROR,
            payload: 9,
            system_identifier: 3,
        };
        assert_eq!(HelloReply::decode(&reply.encode()), Ok(reply));
        let get = GetPages {
            request_id: 77,
            space: 1663,
            db: 5,
            rel: 16384,
            fork: 2,
            first_block: 131_072,
            count: 32,
            lsn: 1 << 40,
        };
        assert_eq!(GetPages::decode(&get.encode()), Ok(get));
        let page = PageReply {
            request_id: 77,
            space: 1663,
            db: 5,
            rel: 16384,
            fork: 2,
            block: 131_073,
            status: STATUS_PAGE,
            payload: 8192,
            lsn: 1 << 40,
        };
        assert_eq!(PageReply::decode(&page.encode()), Ok(page));
        assert_eq!(
            GetPages::decode(&page.encode()),
            Err(WireError::Op(OP_PAGE))
        );
    }
}
