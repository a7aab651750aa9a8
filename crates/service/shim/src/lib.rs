//! The page shim: `libstrandline_shim.so`, loaded by `LD_PRELOAD` into every process of a stock
//! PostgreSQL server, makes a data directory of sparse stubs behave like the whole one.
//!
//! **Invariant.** A read of a relation file or SLRU returns, for every block, the bytes PostgreSQL last
//! wrote there in this incarnation, or else the page as of the start LSN E: never zeros of a stub or of
//! a punched hole, never storage's copy of a block that PostgreSQL wrote, truncated or dropped, never a
//! reply to another question. If it broke, PostgreSQL would see a corrupt or an old page and believe it.
//!
//! Why storage's page *as of E* is always right: a block is fetched only while PostgreSQL has not written
//! it in this incarnation, and what PostgreSQL has not written since E is as it was at E (design,
//! invariants 4 and 5). So a fetch never waits for the log and a fetched page never goes stale.
//!
//! # Parts
//!
//! ```text
//! interposed ──► fds, attach, path     which calls concern a governed file
//!     └► governed                      read, write, truncate by block
//!          ├► blocks                   the shared state words: who may touch a block's bytes
//!          ├► readahead                which blocks to ask for before they are read
//!          └► fetch ──► session ──► requests, endpoint      the page server
//!                          └► fill ──► local_file, evict    the local file
//! ```
//!
//! # States of a block
//!
//! Each block that existed at E has a word in the map ([`shim_abi::map`]), shared by all processes:
//!
//! ```text
//!            claim (CAS)              publish
//!   ABSENT ───────────────► FILLING ───────────► PRESENT ──┐ CAS by the clock
//!     ▲  ▲                   │    └─ by a writer ─► WRITTEN │
//!     │  └── write failed ───┘                       ▲  ▲   ▼
//!     │                       PRESENT ── CAS ────────┘  │ EVICTING
//!     └───────────────── sequence + 1, hole punched ────┼───┘
//!                                                 (nothing leaves WRITTEN)
//! ```
//!
//! and each fork has `base_blocks`, which only falls: a block at or beyond it is local, whatever its word
//! says. Files without an entry (created since E, temporary) are local altogether.
//!
//! # Why the races are none
//!
//! All accesses to words and `base_blocks` are sequentially consistent; "before" below is that order.
//!
//! *Fill against write.* Both go through a compare-and-swap on the word: a filler needs ABSENT, and a
//! writer leaves FILLING (by itself) or WRITTEN behind before its first byte. Whoever comes second sees
//! the other: the filler drops its page, the writer waits until the filler published. A page that was
//! fetched for a reader is handed out only if the word is not WRITTEN *after* it arrived, so a reader
//! that starts after a write returned cannot get storage's copy. A writer holds an absent block as FILLING
//! and not as WRITTEN so that a failed write (disk full) can put it back to ABSENT: WRITTEN would declare
//! the stub's zeros PostgreSQL's own.
//!
//! *Read against eviction.* A reader loads the word, reads the file, loads the word again, and believes
//! the bytes only if both times the block was here with the same sequence. An evictor that punched in
//! between has moved the word to EVICTING before the punch and to the next sequence after it, and the
//! word never returns to an earlier sequence (28 bits: a quarter of a billion evictions of one block
//! during one `pread`). Otherwise the page is fetched, and handed out from memory without going through
//! the file again, so a cache smaller than the readers' appetite cannot starve them.
//!
//! *Write against eviction.* PRESENT goes to EVICTING or to WRITTEN by one compare-and-swap each. A
//! writer that lost waits until the hole is punched; an evictor that lost spares the block.
//!
//! *Truncate or drop against fill and eviction.* The truncation (1) lowers `base_blocks`, (2) looks at each
//! cut word and waits while it is FILLING or EVICTING, turning PRESENT into WRITTEN, and only then (3)
//! truncates. A filler (a) moves the word to FILLING, (b) loads `base_blocks`, backing off if the block
//! is beyond it, and only then (c) writes. If (b) came before (1), then (a) came before (2), which
//! therefore waits for (c). If it came after, there is no (c). The same holds for the evictor, for
//! which (2) alone would do, because it leaves nothing PRESENT. Hence when (3) runs nobody touches the
//! cut range, nobody will again, and a relation that reuses the number, or the file that takes the name,
//! is never filled with its predecessor's pages. SLRUs lose segments at the front, which `base_blocks`
//! cannot say: there every word of the segment becomes WRITTEN, and the compare-and-swaps do the rest.
//! Two truncations of one fork at once, which PostgreSQL's locks rule out, are not considered.
//!
//! *Waiting.* FILLING and EVICTING are held only around local system calls with the bytes in hand. A
//! writer that holds some blocks and waits for the next one takes them in ascending order, and fillers
//! and evictors wait for nothing while they hold one; so there is no cycle. Readers never wait for a
//! state: they fetch. A process killed while it held a block takes the incarnation down anyway
//! (`restart_after_crash = off`); until then others give up after a minute with EIO.
//!
//! *Fork and signals.* The connection, the outstanding requests and the receive buffer are the
//! process's own; a forked child drops them before anything else. PostgreSQL's signal handlers only
//! set flags (or `_exit`), so a read is never left by a jump while it holds the process's lock or a block.
//!
//! # What is not covered
//!
//! `mmap` and `sendfile` of relation files, `dup` of their descriptors, `openat` relative to a
//! directory's descriptor, `preadv2`/`pwritev2` and io_uring bypass the shim. PostgreSQL 14 to 18 uses
//! none of them for relations, given `io_method` other than `io_uring`; `fsync` and its kin need no help.
//!
//! UNSAFETY: the C library's calling conventions, foreign buffers, one process-wide session behind a
//! lock, and shared memory. Each function that touches a caller's buffer says whose promise it relies
//! on. Nothing here unwinds: no code path panics, and a panic in an `extern "C"` function aborts.

#![allow(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)
)]

pub mod attach;
pub mod blocks;
pub mod endpoint;
pub mod evict;
pub mod fds;
pub mod fetch;
pub mod fill;
pub mod governed;
pub mod interposed;
pub mod local_file;
pub mod path;
pub mod postgres;
pub mod readahead;
pub mod real;
pub mod report;
pub mod requests;
pub mod session;
pub mod target;
