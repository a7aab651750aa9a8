//! Native redo: what PostgreSQL's recovery does to a page, as a function of page and record.
//!
//! **Invariant.** Given the page as it was before a record, [`redo`] leaves exactly the bytes that a
//! stock server's recovery leaves (up to hints that recovery itself does not keep), and
//! [`page_changes`] names every page the record changes. A page missed, or a byte off, is a
//! database that silently differs from the one that was written; so nothing unknown is ignored, and
//! every disagreement between record and page is an error that names it.
//!
//! The two functions divide the work: the storage node asks [`page_changes`] once for each record it
//! receives and keeps a mini-record ([`pg_wal::MiniRecord`]) under each page's key; when a page is
//! read, [`redo`] applies its mini-records in order. Changes are applied unconditionally: the chain
//! holds each change once, so the page's LSN, unreliable on visibility-map pages, is not asked.
//!
//! Native: heap, B-tree, sequences, generic records, full-page images, visibility map, transaction
//! status, multixacts, commit timestamps. GIN, GiST, SP-GiST, hash, BRIN and extensions' own
//! resource managers: by the after-images that `wal_consistency_checking` makes the server write.
//!
//! Not redone, because stock recovery treats them as hints as well: the free space map.

#![deny(clippy::indexing_slicing)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "offsets and lengths within a page fit in 16 bits; the accessors check them"
)]

mod btree;
mod changes;
mod error;
mod generic;
mod heap;
mod heap2;
mod heap_tuple;
mod image;
mod items;
mod page;
mod prune;
mod reader;
mod sequence;
mod slru;
mod visibility_map;

use pg_types::{BLCKSZ, ForkNumber, Lsn, PageKey, PgMajor};
use pg_wal::{BlockRef, MiniRecord, Record, RmgrId, Target};

pub use changes::{Facts, PageChange, page_changes};
pub use error::{RedoError, RedoFault, UnsupportedReason, UnsupportedRecord};

use page::PageMut;

/// What redo needs to know beside page and record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedoContext {
    /// Major of the server that wrote the record.
    pub major: PgMajor,
}

/// One block reference being redone.
struct BlockRedo<'r, 'a> {
    record: &'r Record<'a>,
    block: &'r BlockRef<'a>,
    end: Lsn,
    hint_lsn: bool,
    major: PgMajor,
}

/// Applies `mini`, whose record was decoded into `record` and ended at `end`, to `page`, which `key`
/// names.
///
/// The page must be as the records before it left it; for a mini-record that initializes, its
/// content does not matter. After an error the content of `page` is unspecified.
///
/// # Errors
/// [`RedoError`] naming what disagreed between record and page.
pub fn redo(
    page: &mut [u8; BLCKSZ],
    key: PageKey,
    mini: &MiniRecord<'_>,
    record: &Record<'_>,
    end: Lsn,
    ctx: &RedoContext,
) -> Result<(), RedoError> {
    apply(page, key, mini, record, end, *ctx).map_err(|fault| RedoError {
        key,
        rmgr: record.header.rmid,
        info: record.info(),
        end,
        fault,
    })
}

fn apply(
    page: &mut [u8; BLCKSZ],
    key: PageKey,
    mini: &MiniRecord<'_>,
    record: &Record<'_>,
    end: Lsn,
    ctx: RedoContext,
) -> Result<(), RedoFault> {
    let id = match mini.target {
        Target::Block(id) => id,
        Target::Implied => return apply_implied(page, key, record),
    };
    let block = record.block(id).ok_or(RedoFault::NoBlock { id })?;
    if PageKey::relation(block.rel, block.fork, block.block) != key {
        return Err(RedoFault::WrongPage);
    }
    if let Some(image) = &block.image {
        return image::restore(page, record, block, image, end);
    }
    if block.will_init {
        page.fill(0);
    }
    let mut page = PageMut::new(page);
    let redo = BlockRedo {
        record,
        block,
        end,
        hint_lsn: mini.hint_lsn,
        major: ctx.major,
    };
    match record.header.rmid {
        RmgrId::HEAP | RmgrId::HEAP2 if block.fork == ForkNumber::Vm => {
            visibility_map::redo_block(&mut page, &redo)
        }
        RmgrId::HEAP => heap::redo(&mut page, &redo),
        RmgrId::HEAP2 => heap2::redo(&mut page, &redo),
        RmgrId::BTREE => btree::redo(&mut page, &redo),
        RmgrId::SEQ => sequence::redo(&mut page, &redo),
        RmgrId::GENERIC => generic::redo(&mut page, &redo),
        RmgrId::XLOG
        | RmgrId::GIN
        | RmgrId::GIST
        | RmgrId::SPGIST
        | RmgrId::HASH
        | RmgrId::BRIN => Err(RedoFault::NoImage { id }),
        rmgr if rmgr.is_custom() => Err(RedoFault::NoImage { id }),
        _ => Err(RedoFault::UnknownRecord),
    }
}

/// Applies a record to a page that it changes without a block reference.
fn apply_implied(
    page: &mut [u8; BLCKSZ],
    key: PageKey,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    match (record.header.rmid, key.as_slru()) {
        (RmgrId::HEAP | RmgrId::HEAP2, None) => {
            visibility_map::redo_implied_clear(page, key, record)
        }
        (RmgrId::SMGR, None) => visibility_map::redo_truncate(page, key, record),
        (RmgrId::XACT, Some(slru)) => slru::redo_xact(page, slru, key.block, record),
        (RmgrId::MULTIXACT, Some(slru)) => slru::redo_multixact(page, slru, key.block, record),
        (RmgrId::CLOG | RmgrId::COMMIT_TS, Some(slru)) => {
            slru::redo_zero_page(page, slru, key.block, record)
        }
        _ => Err(RedoFault::WrongPage),
    }
}
