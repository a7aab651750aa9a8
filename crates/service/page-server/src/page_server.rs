//! Serving pages to page shims.
//!
//! **Invariant.** A page goes out only under the request id, key, block and LSN it was read for, with
//! the checksum PostgreSQL will check. A block that the cluster's state does not have at that LSN is
//! an error, never zeros: zeros would be taken for an empty page and overwrite rows.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use page_store::{GetPageError, PageInfo, PageStore};
use parking_lot::Mutex;
use pg_types::{BLCKSZ, Lsn, PageKey};
use rpc::{Connection, Endpoint, Listener};
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, MAX_BLOCKS, PageReply, STATUS_ERROR, STATUS_PAGE,
    STATUS_RETRY, STATUS_ZERO,
};

use crate::block_history::SharedHistory;
use crate::status::NodeStatus;

/// How long a request may wait for WAL before the client is asked to come again.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Replies are sent when so many bytes have been collected, or nothing more has been asked.
const SEND_BYTES: usize = 256 << 10;
/// A client that does not take its pages for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests read at once.
const INPUT_BYTES: usize = 64 * FRAME_BYTES;

/// What connections read from.
pub(crate) struct PageSource {
    pub(crate) store: Arc<PageStore>,
    pub(crate) history: Arc<SharedHistory>,
    pub(crate) status: Arc<NodeStatus>,
}

/// A running page server; dropping it ends every connection.
pub(crate) struct PageServer {
    endpoint: Endpoint,
    shared: Arc<Connections>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Connections {
    stopping: AtomicBool,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Connection>>,
}

impl PageServer {
    pub(crate) fn start(
        listener: Listener,
        source: Arc<PageSource>,
    ) -> std::io::Result<PageServer> {
        let endpoint = listener.endpoint()?;
        let shared = Arc::new(Connections::default());
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("pages-accept".to_owned())
            .spawn(move || accept(&listener, &accepting, &source))?;
        Ok(PageServer {
            endpoint,
            shared,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // The acceptor waits in accept: a connection of our own wakes it.
        let woken = Connection::connect(&self.endpoint, Duration::from_secs(1)).is_ok();
        for connection in self.shared.open.lock().values() {
            // Closed by the client already: that is what was wanted.
            let _ = connection.shutdown();
        }
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            // Gone either way.
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &Listener, shared: &Arc<Connections>, source: &Arc<PageSource>) {
    loop {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let registered = accepted.and_then(|connection| {
            connection.set_write_timeout(Some(WRITE_TIMEOUT))?;
            let clone = connection.try_clone()?;
            Ok((connection, clone))
        });
        let Ok((connection, clone)) = registered else {
            // Out of descriptors, or the client left already: let others finish, then go on.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        shared.open.lock().insert(id, clone);
        let (connections, source) = (Arc::clone(shared), Arc::clone(source));
        let spawned = std::thread::Builder::new()
            .name("pages".to_owned())
            .spawn(move || {
                if let Err(error) = serve(connection, &source) {
                    tracing::debug!("page connection ended: {error}");
                }
                connections.open.lock().remove(&id);
            });
        if spawned.is_err() {
            shared.open.lock().remove(&id);
        }
    }
}

fn serve(mut connection: Connection, source: &PageSource) -> std::io::Result<()> {
    let mut frame = [0; FRAME_BYTES];
    connection.read_exact(&mut frame)?;
    if !greet(&mut connection, source, &frame)? {
        return Ok(());
    }
    let mut input = vec![0; INPUT_BYTES];
    let mut filled = 0;
    let mut replies = Replies {
        source,
        out: Vec::with_capacity(SEND_BYTES * 2),
        connection,
    };
    loop {
        let free = input.get_mut(filled..).unwrap_or_default();
        let read = replies.connection.read(free)?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let (frames, rest) = input
            .get(..filled)
            .unwrap_or_default()
            .as_chunks::<FRAME_BYTES>();
        let rest = rest.len();
        for frame in frames {
            let Ok(request) = GetPages::decode(frame) else {
                tracing::warn!("a page client sent what is not a request; closing its connection");
                return Ok(());
            };
            replies.answer(&request)?;
        }
        replies.send()?;
        input.copy_within(filled - rest..filled, 0);
        filled = rest;
    }
}

/// Answers the first frame; false when the client is not welcome.
fn greet(
    connection: &mut Connection,
    source: &PageSource,
    frame: &[u8; FRAME_BYTES],
) -> std::io::Result<bool> {
    let ours = source.store.identity().system_identifier;
    let oldest = source.store.oldest();
    let refusal = match Hello::decode(frame) {
        Err(error) => Some(format!(
            "this is no page client of this version ({error:?})"
        )),
        Ok(hello) if hello.system_identifier != ours => Some(format!(
            "the client belongs to cluster {}, this storage node to cluster {ours}",
            hello.system_identifier
        )),
        Ok(hello) if Lsn(hello.lsn) < oldest => Some(format!(
            "LSN {} is no longer kept, the oldest one is {oldest}",
            Lsn(hello.lsn)
        )),
        Ok(_) => None,
    };
    let message = refusal.as_deref().unwrap_or_default();
    let reply = HelloReply {
        status: if refusal.is_some() {
            STATUS_ERROR
        } else {
            STATUS_PAGE
        },
        payload: message.len() as u32,
        system_identifier: ours,
    };
    connection.write_all(&reply.encode())?;
    connection.write_all(message.as_bytes())?;
    Ok(refusal.is_none())
}

/// Replies on their way to one client.
struct Replies<'a> {
    source: &'a PageSource,
    out: Vec<u8>,
    connection: Connection,
}

impl Replies<'_> {
    fn answer(&mut self, request: &GetPages) -> std::io::Result<()> {
        if let Err((status, message)) = self.check(request) {
            for nth in 0..request.count.clamp(1, MAX_BLOCKS) {
                self.refuse(request, u32::from(nth), status, &message);
            }
            return Ok(());
        }
        let first = PageKey {
            space: request.space,
            db: request.db,
            rel: request.rel,
            fork: request.fork,
            block: request.first_block,
        };
        let source = self.source;
        let checksums = source.store.identity().data_checksums && request.space != 0;
        let mut failed = None;
        let count = u32::from(request.count);
        source
            .store
            .get_pages(first, count, Lsn(request.lsn), |nth, result| {
                match result {
                    Ok((page, info)) => self.page(request, nth, page, info, checksums),
                    Err(error @ GetPageError::NotApplied { .. }) => {
                        self.refuse(request, nth, STATUS_RETRY, &error.to_string());
                    }
                    Err(error) => {
                        tracing::error!("serving a page: {error}");
                        self.refuse(request, nth, STATUS_ERROR, &error.to_string());
                    }
                }
                if self.out.len() >= SEND_BYTES && failed.is_none() {
                    failed = self.send().err();
                }
            });
        source.status.count_pages(u64::from(count));
        failed.map_or(Ok(()), Err)
    }

    /// Whether the request can be answered with pages; otherwise the status and why.
    fn check(&self, request: &GetPages) -> Result<(), (u8, String)> {
        let source = self.source;
        let lsn = Lsn(request.lsn);
        let count = u32::from(request.count);
        if request.count == 0 || request.count > MAX_BLOCKS {
            let message = format!("a request for {count} blocks; 1 to {MAX_BLOCKS} are allowed");
            return Err((STATUS_ERROR, message));
        }
        if lsn > source.store.applied() {
            source.status.note_wanted(lsn);
        }
        if let Err(error) = source.store.wait_applied(lsn, LONGEST_WAIT) {
            return Err(match source.status.stopped() {
                Some(why) => (STATUS_ERROR, format!("{lsn} will not be reached: {why}")),
                None => (STATUS_RETRY, error.to_string()),
            });
        }
        let last = request.first_block.saturating_add(count - 1);
        let key = PageKey {
            space: request.space,
            db: request.db,
            rel: request.rel,
            fork: request.fork,
            block: last,
        };
        let Some(fork) = key.as_relation() else {
            return match key.as_slru() {
                Some(_) => Ok(()),
                None => Err((
                    STATUS_ERROR,
                    format!("{key} names neither a relation nor an SLRU"),
                )),
            };
        };
        match source.history.read().size_at(fork, lsn) {
            Some(blocks) if last < blocks => Ok(()),
            Some(blocks) => {
                let message =
                    format!("{fork} has {blocks} blocks at {lsn}; block {last} does not exist");
                Err((STATUS_ERROR, message))
            }
            None => Err((STATUS_ERROR, format!("{fork} does not exist at {lsn}"))),
        }
    }

    fn page(
        &mut self,
        request: &GetPages,
        nth: u32,
        page: &[u8; BLCKSZ],
        info: PageInfo,
        checksums: bool,
    ) {
        if info.zero {
            return self.header(request, nth, STATUS_ZERO, 0);
        }
        self.header(request, nth, STATUS_PAGE, BLCKSZ);
        let from = self.out.len();
        self.out.extend_from_slice(page);
        if checksums
            && let Some(page) = self
                .out
                .get_mut(from..)
                .and_then(|page| page.first_chunk_mut())
            && !pg_page::page_header::is_new(page)
        {
            pg_page::set_checksum(page, request.first_block.saturating_add(nth));
        }
    }

    fn refuse(&mut self, request: &GetPages, nth: u32, status: u8, message: &str) {
        self.header(request, nth, status, message.len());
        self.out.extend_from_slice(message.as_bytes());
    }

    fn header(&mut self, request: &GetPages, nth: u32, status: u8, payload: usize) {
        let reply = PageReply {
            request_id: request.request_id,
            space: request.space,
            db: request.db,
            rel: request.rel,
            fork: request.fork,
            block: request.first_block.saturating_add(nth),
            status,
            payload: payload as u32,
            lsn: request.lsn,
        };
        self.out.extend_from_slice(&reply.encode());
    }

    fn send(&mut self) -> std::io::Result<()> {
        self.connection.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}
