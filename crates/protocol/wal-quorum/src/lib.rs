//! wal-quorum
