//! Reading whole pages from the storage node over the page wire, for the files that a server must
//! find complete when it starts.
//!
//! **Invariant.** A page is taken only from a reply that names the request, key, block and LSN it
//! was asked for; anything else ends the connection with an error rather than a wrong page in a file.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::time::{Duration, Instant};

use pg_types::{BLCKSZ, BlockNumber, Lsn, RelFork, Slru};
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, MAX_BLOCKS, PageReply, STATUS_ERROR, STATUS_PAGE,
    STATUS_RETRY, STATUS_ZERO, WireError,
};

/// Requests outstanding at a time.
const WINDOW: usize = 32;

/// Longest message or page that may follow a reply header.
const MAX_PAYLOAD: usize = 64 << 10;

/// Consecutive blocks of one fork or SLRU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    /// Tablespace, or zero.
    pub space: u32,
    /// Database, or zero.
    pub db: u32,
    /// Relation, or SLRU.
    pub rel: u32,
    /// Fork.
    pub fork: u8,
    /// First block.
    pub first: BlockNumber,
    /// Number of blocks.
    pub count: u32,
}

impl PageRange {
    /// All `blocks` blocks of a fork.
    #[must_use]
    pub const fn fork(fork: RelFork, blocks: BlockNumber) -> PageRange {
        PageRange {
            space: fork.locator.spc,
            db: fork.locator.db,
            rel: fork.locator.rel,
            fork: fork.fork as u8,
            first: 0,
            count: blocks,
        }
    }

    /// Pages `first..=last` of an SLRU.
    #[must_use]
    pub const fn slru(slru: Slru, first: BlockNumber, last: BlockNumber) -> PageRange {
        let count = if last < first { 0 } else { last - first + 1 };
        PageRange {
            space: 0,
            db: 0,
            rel: slru as u32,
            fork: 0,
            first,
            count,
        }
    }
}

/// Why pages could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PageReadError {
    /// The connection failed.
    #[error("storage node at {endpoint}: {source}")]
    Io {
        /// The page endpoint.
        endpoint: rpc::Endpoint,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What came is no answer of this protocol.
    #[error("storage node at {endpoint} sent a frame that was not understood: {error:?}")]
    Wire {
        /// The page endpoint.
        endpoint: rpc::Endpoint,
        /// What is wrong with it.
        error: WireError,
    },
    /// An answer to something that was not asked.
    #[error("storage node at {endpoint} answered what was not asked: {reply:?}")]
    Mismatch {
        /// The page endpoint.
        endpoint: rpc::Endpoint,
        /// The answer.
        reply: Box<PageReply>,
    },
    /// The storage node cannot serve this client or page.
    #[error("storage node at {endpoint}: {message}")]
    Refused {
        /// The page endpoint.
        endpoint: rpc::Endpoint,
        /// What it says.
        message: String,
    },
    /// The storage node kept asking for patience.
    #[error("storage node at {endpoint} was not ready within {} s: {message}", waited.as_secs())]
    NotReady {
        /// The page endpoint.
        endpoint: rpc::Endpoint,
        /// How long it was waited.
        waited: Duration,
        /// What it said last.
        message: String,
    },
}

/// A connection to the page server.
#[derive(Debug)]
pub struct PageReader {
    endpoint: rpc::Endpoint,
    input: BufReader<rpc::Connection>,
    output: rpc::Connection,
    lsn: Lsn,
    next_request: u64,
    patience: Duration,
}

impl PageReader {
    /// Connects for reading at `lsn`; waits up to `patience` for a storage node that is still starting.
    ///
    /// # Errors
    /// [`PageReadError`].
    pub fn connect(
        endpoint: &rpc::Endpoint,
        system_identifier: u64,
        lsn: Lsn,
        patience: Duration,
    ) -> Result<PageReader, PageReadError> {
        let begun = Instant::now();
        loop {
            match Self::try_connect(endpoint, system_identifier, lsn, patience) {
                Ok(Ok(reader)) => return Ok(reader),
                Ok(Err(message)) if begun.elapsed() >= patience => {
                    return Err(PageReadError::NotReady {
                        endpoint: endpoint.clone(),
                        waited: patience,
                        message,
                    });
                }
                Err(error @ PageReadError::Io { .. }) if begun.elapsed() >= patience => {
                    return Err(error);
                }
                Ok(Err(_)) | Err(PageReadError::Io { .. }) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt; the inner error is a message of a server that asks for patience.
    fn try_connect(
        endpoint: &rpc::Endpoint,
        system_identifier: u64,
        lsn: Lsn,
        patience: Duration,
    ) -> Result<Result<PageReader, String>, PageReadError> {
        let io = |source| PageReadError::Io {
            endpoint: endpoint.clone(),
            source,
        };
        let output = rpc::Connection::connect(endpoint, Duration::from_secs(5)).map_err(io)?;
        output
            .set_read_timeout(Some(Duration::from_secs(30)))
            .map_err(io)?;
        let input = BufReader::with_capacity(256 << 10, output.try_clone().map_err(io)?);
        let mut reader = PageReader {
            endpoint: endpoint.clone(),
            input,
            output,
            lsn,
            next_request: 1,
            patience,
        };
        reader.send(
            &Hello {
                system_identifier,
                lsn: lsn.0,
            }
            .encode(),
        )?;
        let frame = reader.read_frame()?;
        let reply = HelloReply::decode(&frame).map_err(|error| reader.wire(error))?;
        let message = reader.read_message(reply.payload)?;
        match reply.status {
            STATUS_PAGE => Ok(Ok(reader)),
            STATUS_RETRY => Ok(Err(message)),
            _ => Err(PageReadError::Refused {
                endpoint: endpoint.clone(),
                message,
            }),
        }
    }

    /// Reads every block of `ranges`; `sink` gets the range's index, the block and its bytes, in any
    /// order.
    ///
    /// # Errors
    /// [`PageReadError`], or the first error of `sink`.
    pub fn read<E: From<PageReadError>>(
        &mut self,
        ranges: &[PageRange],
        mut sink: impl FnMut(usize, BlockNumber, &[u8; BLCKSZ]) -> Result<(), E>,
    ) -> Result<(), E> {
        let begun = Instant::now();
        let mut todo: Vec<(usize, PageRange)> = Vec::new();
        for (index, range) in ranges.iter().enumerate() {
            let mut first = range.first;
            let mut left = range.count;
            while left > 0 {
                let count = left.min(u32::from(MAX_BLOCKS));
                todo.push((
                    index,
                    PageRange {
                        first,
                        count,
                        ..*range
                    },
                ));
                first = first.saturating_add(count);
                left -= count;
            }
        }
        todo.reverse();
        let mut outstanding: HashMap<u64, (usize, PageRange, u32)> = HashMap::new();
        let mut page = [0u8; BLCKSZ];
        loop {
            while outstanding.len() < WINDOW {
                let Some((index, range)) = todo.pop() else {
                    break;
                };
                let id = self.request(&range)?;
                outstanding.insert(id, (index, range, range.count));
            }
            if outstanding.is_empty() {
                return Ok(());
            }
            let frame = self.read_frame()?;
            let reply = PageReply::decode(&frame).map_err(|error| self.wire(error))?;
            let Some((index, range, left)) = outstanding.get_mut(&reply.request_id) else {
                return Err(self.mismatch(&reply).into());
            };
            let (index, range) = (*index, *range);
            if !matches(&reply, &range, self.lsn) {
                return Err(self.mismatch(&reply).into());
            }
            *left -= 1;
            if *left == 0 {
                outstanding.remove(&reply.request_id);
            }
            match reply.status {
                STATUS_PAGE if reply.payload as usize == BLCKSZ => {
                    self.read_exact(&mut page)?;
                    sink(index, reply.block, &page)?;
                }
                STATUS_ZERO => {
                    page.fill(0);
                    sink(index, reply.block, &page)?;
                }
                STATUS_RETRY => {
                    let message = self.read_message(reply.payload)?;
                    if begun.elapsed() > self.patience {
                        let (endpoint, waited) = (self.endpoint.clone(), self.patience);
                        return Err(PageReadError::NotReady {
                            endpoint,
                            waited,
                            message,
                        }
                        .into());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                    todo.push((
                        index,
                        PageRange {
                            first: reply.block,
                            count: 1,
                            ..range
                        },
                    ));
                }
                STATUS_ERROR => {
                    let message = self.read_message(reply.payload)?;
                    return Err(PageReadError::Refused {
                        endpoint: self.endpoint.clone(),
                        message,
                    }
                    .into());
                }
                _ => return Err(self.mismatch(&reply).into()),
            }
        }
    }

    fn request(&mut self, range: &PageRange) -> Result<u64, PageReadError> {
        let id = self.next_request;
        self.next_request += 1;
        let frame = GetPages {
            request_id: id,
            space: range.space,
            db: range.db,
            rel: range.rel,
            fork: range.fork,
            first_block: range.first,
            count: u16::try_from(range.count).unwrap_or(MAX_BLOCKS),
            lsn: self.lsn.0,
        }
        .encode();
        self.send(&frame)?;
        Ok(id)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), PageReadError> {
        self.output
            .write_all(bytes)
            .map_err(|source| self.io(source))
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), PageReadError> {
        self.input
            .read_exact(bytes)
            .map_err(|source| self.io(source))
    }

    fn read_frame(&mut self) -> Result<[u8; FRAME_BYTES], PageReadError> {
        let mut frame = [0; FRAME_BYTES];
        self.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn read_message(&mut self, len: u32) -> Result<String, PageReadError> {
        let len = len as usize;
        if len > MAX_PAYLOAD {
            return Err(self.io(io::Error::new(
                io::ErrorKind::InvalidData,
                "message too long",
            )));
        }
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn io(&self, source: io::Error) -> PageReadError {
        PageReadError::Io {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    fn wire(&self, error: WireError) -> PageReadError {
        PageReadError::Wire {
            endpoint: self.endpoint.clone(),
            error,
        }
    }

    fn mismatch(&self, reply: &PageReply) -> PageReadError {
        PageReadError::Mismatch {
            endpoint: self.endpoint.clone(),
            reply: Box::new(*reply),
        }
    }
}

fn matches(reply: &PageReply, range: &PageRange, lsn: Lsn) -> bool {
    (reply.space, reply.db, reply.rel, reply.fork) == (range.space, range.db, range.rel, range.fork)
        && reply.lsn == lsn.0
        && reply.block >= range.first
        && reply.block - range.first < range.count
}
