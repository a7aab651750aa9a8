//! Applying a log chain to a page.

use pg_redo::RedoContext;
use pg_types::{BLCKSZ, Lsn, PageKey, PgMajor};
use pg_wal::{MiniRecord, Record};

use crate::chain::Chain;
use crate::entry::EntryKind;
use crate::error::{GetPageError, ReplayError};

/// Applies the changes of `chain`, which is in LSN order, to `page`. Returns the LSN of the last.
pub(crate) fn apply(
    page: &mut [u8; BLCKSZ],
    key: PageKey,
    chain: &Chain,
    major: PgMajor,
) -> Result<Option<Lsn>, GetPageError> {
    let context = RedoContext { major };
    let mut version = None;
    for change in chain.changes() {
        let applied = match change.kind {
            EntryKind::Image => put_image(page, change.bytes),
            EntryKind::ZeroImage => {
                page.fill(0);
                Ok(())
            }
            EntryKind::Mini | EntryKind::MiniInit => {
                put_mini(page, key, change.bytes, change.lsn, &context)
            }
            // Metadata is never under a page's key.
            EntryKind::MetaValue | EntryKind::MetaTombstone => Ok(()),
        };
        applied.map_err(|source| GetPageError::Replay {
            key,
            at: change.lsn,
            source,
        })?;
        version = Some(change.lsn);
    }
    Ok(version)
}

fn put_image(page: &mut [u8; BLCKSZ], bytes: &[u8]) -> Result<(), ReplayError> {
    let image: &[u8; BLCKSZ] = bytes
        .try_into()
        .map_err(|_| ReplayError::ImageSize(bytes.len()))?;
    page.copy_from_slice(image);
    Ok(())
}

fn put_mini(
    page: &mut [u8; BLCKSZ],
    key: PageKey,
    bytes: &[u8],
    end: Lsn,
    context: &RedoContext,
) -> Result<(), ReplayError> {
    let mini = MiniRecord::decode(bytes)?;
    let record = Record::decode(mini.record, context.major)?;
    pg_redo::redo(page, key, &mini, &record, end, context)?;
    Ok(())
}
