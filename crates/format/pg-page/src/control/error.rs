//! Why a control file is refused.

use thiserror::Error;

/// What is wrong with a control file; each message names what differs and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ControlFileError {
    /// The file does not have the size of every `pg_control`.
    #[error(
        "pg_control has {found} bytes instead of 8192; the file is truncated or not a control \
         file: take global/pg_control from a cleanly stopped cluster"
    )]
    Length {
        /// Its size.
        found: usize,
    },
    /// The version makes sense only when its bytes are turned around.
    #[error(
        "pg_control was written with the other byte order (version {found:#010x}); a cluster from \
         a big-endian machine must be moved with pg_dump and pg_restore"
    )]
    ByteOrder {
        /// `pg_control_version` as read.
        found: u32,
    },
    /// A layout that no supported major uses.
    #[error(
        "pg_control_version {found} is not supported; supported are 1300 (PostgreSQL 14 to 16), \
         1700 (17) and 1800 (18): bring the cluster to one of these majors with pg_upgrade"
    )]
    ControlVersion {
        /// `pg_control_version`.
        found: u32,
    },
    /// The checksum over the contents is wrong.
    #[error(
        "pg_control is damaged: it stores CRC {stored:#010x}, its contents have {computed:#010x}; \
         restore the file from a backup, or rebuild it with pg_resetwal and accept the loss"
    )]
    Crc {
        /// The CRC in the file.
        stored: u32,
        /// The CRC of what is in the file.
        computed: u32,
    },
    /// A catalog that no supported major has.
    #[error(
        "catalog version {found} belongs to no released PostgreSQL 14 to 18; a beta or modified \
         server wrote it: move the data to a released server with pg_dump and pg_restore"
    )]
    CatalogVersion {
        /// `catalog_version_no`.
        found: u32,
    },
    /// Layout and catalog are of different majors.
    #[error(
        "catalog version {catalog} is PostgreSQL {major}'s, whose pg_control_version is \
         {expected}, but the file has {found}; no released server writes that: restore pg_control \
         from a backup"
    )]
    VersionMismatch {
        /// The major the catalog belongs to.
        major: u32,
        /// `catalog_version_no`.
        catalog: u32,
        /// That major's `pg_control_version`.
        expected: u32,
        /// `pg_control_version` of the file.
        found: u32,
    },
    /// A state that PostgreSQL does not have.
    #[error(
        "cluster state {found} is unknown (0 to 6 are known); restore pg_control from a backup"
    )]
    State {
        /// The `state` field.
        found: u32,
    },
    /// A number fixed when the server was compiled differs from the usual one.
    #[error(
        "the cluster was built with {what} {found}, only {expected} is supported; move the data \
         with pg_dump and pg_restore to a cluster of a server compiled with {remedy}"
    )]
    CompiledIn {
        /// PostgreSQL's name of the number.
        what: &'static str,
        /// Its value in the file.
        found: u64,
        /// The only value that is supported.
        expected: u64,
        /// The configure option, or what else decides the number.
        remedy: &'static str,
    },
    /// Floating-point numbers have another format.
    #[error(
        "the cluster uses another floating-point format (1234567.0 is stored as {found_bits:#018x}); \
         move the data with pg_dump and pg_restore"
    )]
    FloatFormat {
        /// The bits stored for 1234567.0.
        found_bits: u64,
    },
    /// `float8` and `int8` are passed by reference.
    #[error(
        "the cluster passes float8 by reference, as 32-bit servers do; move the data with pg_dump \
         and pg_restore to a 64-bit server"
    )]
    FloatByReference,
    /// No WAL segment has this size.
    #[error(
        "WAL segment size {found} is no power of two from 1 MiB to 1 GiB; restore pg_control from \
         a backup"
    )]
    SegmentSize {
        /// `xlog_seg_size`.
        found: u32,
    },
    /// A kind of page checksum that no supported major writes.
    #[error(
        "data checksum version {found} is unknown (0 is none, 1 is PostgreSQL's); a newer server \
         wrote the file"
    )]
    ChecksumVersion {
        /// `data_checksum_version`.
        found: u32,
    },
}
