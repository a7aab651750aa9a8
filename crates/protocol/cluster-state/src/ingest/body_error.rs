//! Why the body of a record that changes state is refused.

use pg_wal::records::MainDataError;

#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error(transparent)]
    MainData(#[from] MainDataError),
    #[error("the tablespace's path is not UTF-8, which is not supported")]
    TablespacePath,
    #[error("page {page} is beyond the last page an SLRU can have")]
    SlruPage { page: u64 },
}
