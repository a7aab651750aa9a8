//! A plain client of the page wire, as the shim would ask.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pg_types::{BLCKSZ, Lsn};
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, PageReply, STATUS_ERROR, STATUS_PAGE, STATUS_ZERO,
};

/// A connection to a storage node's page endpoint.
#[derive(Debug)]
pub struct PageClient {
    stream: UnixStream,
    next_request: u64,
    lsn: Lsn,
}

impl PageClient {
    /// Connects to the Unix socket at `path` to read pages at `lsn`.
    ///
    /// # Errors
    /// When the node is not there, or serves another cluster.
    pub fn connect(path: &Path, system_identifier: u64, lsn: Lsn) -> Result<PageClient> {
        let mut stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.write_all(
            &Hello {
                system_identifier,
                lsn: lsn.0,
            }
            .encode(),
        )?;
        let mut frame = [0; FRAME_BYTES];
        stream.read_exact(&mut frame)?;
        let reply = HelloReply::decode(&frame)
            .map_err(|error| anyhow::anyhow!("page server said {error:?}"))?;
        ensure!(
            reply.status == STATUS_PAGE,
            "the page server refuses (status {})",
            reply.status
        );
        Ok(PageClient {
            stream,
            next_request: 1,
            lsn,
        })
    }

    /// Reads one block.
    ///
    /// # Errors
    /// When the node answers with an error or with something that was not asked for.
    pub fn read(&mut self, mut request: GetPages, page: &mut [u8; BLCKSZ]) -> Result<()> {
        request.request_id = self.next_request;
        request.count = 1;
        request.lsn = self.lsn.0;
        self.next_request += 1;
        self.stream.write_all(&request.encode())?;
        let mut frame = [0; FRAME_BYTES];
        self.stream.read_exact(&mut frame)?;
        let reply = PageReply::decode(&frame)
            .map_err(|error| anyhow::anyhow!("page server said {error:?}"))?;
        ensure!(
            reply.request_id == request.request_id && reply.block == request.first_block,
            "asked for {request:?}, got {reply:?}"
        );
        match reply.status {
            STATUS_PAGE => self.stream.read_exact(page)?,
            STATUS_ZERO => page.fill(0),
            status => {
                let mut message = vec![0; reply.payload as usize];
                self.stream.read_exact(&mut message)?;
                let kind = if status == STATUS_ERROR {
                    "fails"
                } else {
                    "is not ready"
                };
                bail!(
                    "the page server {kind}: {}",
                    String::from_utf8_lossy(&message)
                );
            }
        }
        Ok(())
    }
}
