//! `global/pg_control`: what a cluster is and where its recovery begins.
//!
//! **Invariant.** The 8192 bytes are kept as they were read; a setter changes its own field and
//! [`ControlFile::encode`] the CRC, nothing else. Otherwise fields that are not known here (the
//! authentication nonce, what a minor release adds) would be lost when a control file is passed on.
//!
//! Layout (`ControlFileData`, `catalog/pg_control.h`): the same offsets in 14 to 17; 18 puts
//! `default_char_signedness` before the nonce, which moves the CRC from 288 to 292. The CRC-32C
//! covers everything before it; what follows is zero.

mod error;
#[cfg(test)]
mod tests;

use std::fmt;

use pg_types::{BLCKSZ, CheckPoint, Lsn, PgMajor, RELSEG_BLOCKS, SegmentSize, TimelineId};

pub use error::ControlFileError;

use crate::layout::{field, set_field};

/// Bytes of the file (`PG_CONTROL_FILE_SIZE`).
pub const CONTROL_FILE_LEN: usize = 8192;

/// Path below the data directory.
pub const CONTROL_FILE_PATH: &str = "global/pg_control";

/// The number whose bits show the floating-point format (`FLOATFORMAT_VALUE`).
const FLOAT_FORMAT: f64 = 1_234_567.0;

/// What the server was doing when the file was written last (`DBState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ClusterState {
    /// Never started.
    Startup = 0,
    /// Stopped cleanly: the data files are complete.
    ShutDown = 1,
    /// A standby, stopped cleanly.
    ShutDownInRecovery = 2,
    /// In the middle of stopping.
    ShuttingDown = 3,
    /// Replaying after a crash.
    InCrashRecovery = 4,
    /// Replaying an archive or a stream.
    InArchiveRecovery = 5,
    /// Running, or crashed while running.
    InProduction = 6,
}

impl ClusterState {
    /// Every state, by number.
    pub const ALL: [ClusterState; 7] = [
        ClusterState::Startup,
        ClusterState::ShutDown,
        ClusterState::ShutDownInRecovery,
        ClusterState::ShuttingDown,
        ClusterState::InCrashRecovery,
        ClusterState::InArchiveRecovery,
        ClusterState::InProduction,
    ];
}

impl fmt::Display for ClusterState {
    /// Writes the words `pg_controldata` uses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClusterState::Startup => "starting up",
            ClusterState::ShutDown => "shut down",
            ClusterState::ShutDownInRecovery => "shut down in recovery",
            ClusterState::ShuttingDown => "shutting down",
            ClusterState::InCrashRecovery => "in crash recovery",
            ClusterState::InArchiveRecovery => "in archive recovery",
            ClusterState::InProduction => "in production",
        })
    }
}

/// Settings that a standby must not undercut, and that decide what the WAL holds; the body of a
/// parameter-change record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterLimits {
    /// `wal_level` (0 minimal, 1 replica, 2 logical).
    pub wal_level: i32,
    /// `wal_log_hints`.
    pub wal_log_hints: bool,
    /// `max_connections`.
    pub max_connections: i32,
    /// `max_worker_processes`.
    pub max_worker_processes: i32,
    /// `max_wal_senders`.
    pub max_wal_senders: i32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: i32,
    /// `max_locks_per_transaction`.
    pub max_locks_per_transaction: i32,
    /// `track_commit_timestamp`.
    pub track_commit_timestamp: bool,
}

/// A checked control file.
#[derive(Clone, PartialEq, Eq)]
pub struct ControlFile {
    bytes: Box<[u8; CONTROL_FILE_LEN]>,
    major: PgMajor,
    segment_size: SegmentSize,
}

impl ControlFile {
    /// Reads and checks a control file.
    ///
    /// # Errors
    /// [`ControlFileError`]: the first of length, byte order, version, CRC, catalog version, state
    /// and compiled-in numbers that is not as a supported server writes it.
    pub fn decode(bytes: &[u8]) -> Result<ControlFile, ControlFileError> {
        let array: &[u8; CONTROL_FILE_LEN] = bytes
            .try_into()
            .map_err(|_| ControlFileError::Length { found: bytes.len() })?;
        let bytes = Box::new(*array);
        let version = u32::from_le_bytes(field::<8, _, _>(&bytes));
        check_control_version(version)?;
        let (stored, computed) = (stored_crc(&bytes, version), computed_crc(&bytes, version));
        if stored != computed {
            return Err(ControlFileError::Crc { stored, computed });
        }
        let major = major_of(version, u32::from_le_bytes(field::<12, _, _>(&bytes)))?;
        let state = u32::from_le_bytes(field::<16, _, _>(&bytes));
        if !ClusterState::ALL
            .into_iter()
            .any(|known| known as u32 == state)
        {
            return Err(ControlFileError::State { found: state });
        }
        check_compiled_in(&bytes)?;
        let size = u32::from_le_bytes(field::<228, _, _>(&bytes));
        let segment_size = SegmentSize::new(u64::from(size))
            .map_err(|_| ControlFileError::SegmentSize { found: size })?;
        Ok(ControlFile {
            bytes,
            major,
            segment_size,
        })
    }

    /// The file's 8192 bytes, with the CRC of what they are now.
    #[must_use]
    pub fn encode(&self) -> [u8; CONTROL_FILE_LEN] {
        let mut bytes = *self.bytes;
        let version = self.control_version();
        let crc = computed_crc(&bytes, version).to_le_bytes();
        if version >= 1800 {
            set_field::<292, _, _>(&mut bytes, crc);
        } else {
            set_field::<288, _, _>(&mut bytes, crc);
        }
        bytes
    }

    /// The major that wrote the file.
    #[must_use]
    pub const fn major(&self) -> PgMajor {
        self.major
    }

    /// `system_identifier`: made by initdb, stands in every WAL segment.
    #[must_use]
    pub fn system_identifier(&self) -> u64 {
        u64::from_le_bytes(field::<0, _, _>(&self.bytes))
    }

    /// `pg_control_version`.
    #[must_use]
    pub fn control_version(&self) -> u32 {
        self.u32::<8>()
    }

    /// `catalog_version_no`.
    #[must_use]
    pub fn catalog_version(&self) -> u32 {
        self.u32::<12>()
    }

    /// What the server was doing.
    #[must_use]
    pub fn state(&self) -> ClusterState {
        let state = self.u32::<16>();
        // Decoding refused every other number.
        let known = ClusterState::ALL
            .into_iter()
            .find(|known| *known as u32 == state);
        known.unwrap_or(ClusterState::Startup)
    }

    /// Sets the state.
    pub fn set_state(&mut self, state: ClusterState) {
        set_field::<16, _, _>(&mut self.bytes, (state as u32).to_le_bytes());
    }

    /// When the file was written last, in seconds since 1970.
    #[must_use]
    pub fn time(&self) -> i64 {
        i64::from_le_bytes(field::<24, _, _>(&self.bytes))
    }

    /// Sets when the file was written, in seconds since 1970.
    pub fn set_time(&mut self, seconds: i64) {
        set_field::<24, _, _>(&mut self.bytes, seconds.to_le_bytes());
    }

    /// Start of the latest checkpoint record.
    #[must_use]
    pub fn checkpoint_lsn(&self) -> Lsn {
        self.lsn::<32>()
    }

    /// Sets the start of the latest checkpoint record.
    pub fn set_checkpoint_lsn(&mut self, lsn: Lsn) {
        set_field::<32, _, _>(&mut self.bytes, lsn.0.to_le_bytes());
    }

    /// The copy of the latest checkpoint record's body.
    #[must_use]
    pub fn checkpoint(&self) -> CheckPoint {
        let bytes: [u8; CheckPoint::ENCODED_LEN] = field::<40, _, _>(&self.bytes);
        CheckPoint::decode(&bytes, self.major).unwrap_or_default()
    }

    /// Replaces the copy of the latest checkpoint record's body.
    pub fn set_checkpoint(&mut self, checkpoint: &CheckPoint) {
        set_field::<40, _, _>(&mut self.bytes, checkpoint.encode(self.major));
    }

    /// `unloggedLSN`: the counter that unlogged relations stamp on their pages.
    #[must_use]
    pub fn unlogged_lsn(&self) -> Lsn {
        self.lsn::<128>()
    }

    /// Sets `unloggedLSN`.
    pub fn set_unlogged_lsn(&mut self, lsn: Lsn) {
        set_field::<128, _, _>(&mut self.bytes, lsn.0.to_le_bytes());
    }

    /// How far a standby must replay before it is consistent, and on which timeline.
    #[must_use]
    pub fn min_recovery_point(&self) -> (Lsn, TimelineId) {
        (self.lsn::<136>(), TimelineId(self.u32::<144>()))
    }

    /// Sets `minRecoveryPoint` and its timeline; invalid and 0 outside of archive recovery.
    pub fn set_min_recovery_point(&mut self, lsn: Lsn, timeline: TimelineId) {
        set_field::<136, _, _>(&mut self.bytes, lsn.0.to_le_bytes());
        set_field::<144, _, _>(&mut self.bytes, timeline.0.to_le_bytes());
    }

    /// Start of the base backup that recovery is in the middle of, or invalid.
    #[must_use]
    pub fn backup_start(&self) -> Lsn {
        self.lsn::<152>()
    }

    /// End of the base backup that recovery is in the middle of, or invalid.
    #[must_use]
    pub fn backup_end(&self) -> Lsn {
        self.lsn::<160>()
    }

    /// Whether recovery still has to see a backup-end record.
    #[must_use]
    pub fn backup_end_required(&self) -> bool {
        self.bool::<168>()
    }

    /// Forgets that the cluster came from a base backup: start, end, and the need of an end record.
    pub fn clear_backup(&mut self) {
        set_field::<152, _, _>(&mut self.bytes, [0; 17]);
    }

    /// The settings that the WAL was written under.
    #[must_use]
    pub fn parameters(&self) -> ParameterLimits {
        ParameterLimits {
            wal_level: self.i32::<172>(),
            wal_log_hints: self.bool::<176>(),
            max_connections: self.i32::<180>(),
            max_worker_processes: self.i32::<184>(),
            max_wal_senders: self.i32::<188>(),
            max_prepared_transactions: self.i32::<192>(),
            max_locks_per_transaction: self.i32::<196>(),
            track_commit_timestamp: self.bool::<200>(),
        }
    }

    /// Sets the settings that the WAL was written under.
    pub fn set_parameters(&mut self, to: &ParameterLimits) {
        let bytes = &mut *self.bytes;
        set_field::<172, _, _>(bytes, to.wal_level.to_le_bytes());
        set_field::<176, _, _>(bytes, [u8::from(to.wal_log_hints)]);
        set_field::<180, _, _>(bytes, to.max_connections.to_le_bytes());
        set_field::<184, _, _>(bytes, to.max_worker_processes.to_le_bytes());
        set_field::<188, _, _>(bytes, to.max_wal_senders.to_le_bytes());
        set_field::<192, _, _>(bytes, to.max_prepared_transactions.to_le_bytes());
        set_field::<196, _, _>(bytes, to.max_locks_per_transaction.to_le_bytes());
        set_field::<200, _, _>(bytes, [u8::from(to.track_commit_timestamp)]);
    }

    /// WAL segment size.
    #[must_use]
    pub const fn segment_size(&self) -> SegmentSize {
        self.segment_size
    }

    /// Whether relation pages carry checksums.
    #[must_use]
    pub fn data_checksums(&self) -> bool {
        self.u32::<252>() != 0
    }

    /// Whether `char` was signed where the cluster was made; `None` before 18, which does not keep
    /// it.
    #[must_use]
    pub fn default_char_signed(&self) -> Option<bool> {
        (self.major >= PgMajor::V18).then(|| self.bool::<256>())
    }

    /// The nonce that keeps failed SASL exchanges of one cluster alike.
    #[must_use]
    pub fn mock_authentication_nonce(&self) -> [u8; 32] {
        if self.major >= PgMajor::V18 {
            field::<257, _, _>(&self.bytes)
        } else {
            field::<256, _, _>(&self.bytes)
        }
    }

    /// The CRC of the contents as they are now.
    #[must_use]
    pub fn crc(&self) -> u32 {
        computed_crc(&self.bytes, self.control_version())
    }

    fn u32<const OFFSET: usize>(&self) -> u32 {
        u32::from_le_bytes(field::<OFFSET, _, _>(&self.bytes))
    }

    fn i32<const OFFSET: usize>(&self) -> i32 {
        i32::from_le_bytes(field::<OFFSET, _, _>(&self.bytes))
    }

    fn bool<const OFFSET: usize>(&self) -> bool {
        field::<OFFSET, 1, _>(&self.bytes) != [0]
    }

    fn lsn<const OFFSET: usize>(&self) -> Lsn {
        Lsn(u64::from_le_bytes(field::<OFFSET, _, _>(&self.bytes)))
    }
}

impl fmt::Debug for ControlFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFile")
            .field("major", &self.major)
            .field("system_identifier", &self.system_identifier())
            .field("state", &self.state())
            .field("checkpoint_lsn", &self.checkpoint_lsn())
            .field("checkpoint", &self.checkpoint())
            .finish_non_exhaustive()
    }
}

/// `pg_control_version` of the files of `major`.
const fn control_version_of(major: PgMajor) -> u32 {
    match major {
        PgMajor::V14 | PgMajor::V15 | PgMajor::V16 => 1300,
        PgMajor::V17 => 1700,
        PgMajor::V18 => 1800,
    }
}

fn check_control_version(version: u32) -> Result<(), ControlFileError> {
    let supported = |version| {
        PgMajor::ALL
            .into_iter()
            .any(|major| control_version_of(major) == version)
    };
    if supported(version) {
        Ok(())
    } else if supported(version.swap_bytes()) {
        Err(ControlFileError::ByteOrder { found: version })
    } else {
        Err(ControlFileError::ControlVersion { found: version })
    }
}

fn major_of(version: u32, catalog: u32) -> Result<PgMajor, ControlFileError> {
    let major = PgMajor::from_catalog_version(catalog)
        .map_err(|_| ControlFileError::CatalogVersion { found: catalog })?;
    let expected = control_version_of(major);
    if expected == version {
        Ok(major)
    } else {
        let major = major.number();
        Err(ControlFileError::VersionMismatch {
            major,
            catalog,
            expected,
            found: version,
        })
    }
}

fn stored_crc(bytes: &[u8; CONTROL_FILE_LEN], version: u32) -> u32 {
    u32::from_le_bytes(if version >= 1800 {
        field::<292, _, _>(bytes)
    } else {
        field::<288, _, _>(bytes)
    })
}

fn computed_crc(bytes: &[u8; CONTROL_FILE_LEN], version: u32) -> u32 {
    if version >= 1800 {
        crc32c::crc32c(&field::<0, 292, _>(bytes))
    } else {
        crc32c::crc32c(&field::<0, 288, _>(bytes))
    }
}

/// Checks what was fixed when the server was compiled, in the order of the file.
fn check_compiled_in(bytes: &[u8; CONTROL_FILE_LEN]) -> Result<(), ControlFileError> {
    let number = |at: [u8; 4]| u64::from(u32::from_le_bytes(at));
    let same = |what, at: [u8; 4], expected: u64, remedy| {
        let found = number(at);
        if found == expected {
            Ok(())
        } else {
            Err(ControlFileError::CompiledIn {
                what,
                found,
                expected,
                remedy,
            })
        }
    };
    let relseg = u64::from(RELSEG_BLOCKS);
    same(
        "MAXIMUM_ALIGNOF",
        field::<204, _, _>(bytes),
        8,
        "8-byte alignment (a 64-bit machine)",
    )?;
    let float_bits = u64::from_le_bytes(field::<208, _, _>(bytes));
    if float_bits != FLOAT_FORMAT.to_bits() {
        return Err(ControlFileError::FloatFormat {
            found_bits: float_bits,
        });
    }
    same(
        "BLCKSZ",
        field::<216, _, _>(bytes),
        BLCKSZ as u64,
        "--with-blocksize=8",
    )?;
    same(
        "RELSEG_SIZE",
        field::<220, _, _>(bytes),
        relseg,
        "--with-segsize=1",
    )?;
    same(
        "XLOG_BLCKSZ",
        field::<224, _, _>(bytes),
        pg_types::XLOG_BLCKSZ,
        "--with-wal-blocksize=8",
    )?;
    same(
        "NAMEDATALEN",
        field::<232, _, _>(bytes),
        64,
        "NAMEDATALEN 64",
    )?;
    same(
        "INDEX_MAX_KEYS",
        field::<236, _, _>(bytes),
        32,
        "INDEX_MAX_KEYS 32",
    )?;
    same(
        "TOAST_MAX_CHUNK_SIZE",
        field::<240, _, _>(bytes),
        1996,
        "TOAST_MAX_CHUNK_SIZE 1996",
    )?;
    same(
        "LOBLKSIZE",
        field::<244, _, _>(bytes),
        2048,
        "LOBLKSIZE 2048",
    )?;
    if field::<248, 1, _>(bytes) == [0] {
        return Err(ControlFileError::FloatByReference);
    }
    match u32::from_le_bytes(field::<252, _, _>(bytes)) {
        0 | 1 => Ok(()),
        found => Err(ControlFileError::ChecksumVersion { found }),
    }
}
