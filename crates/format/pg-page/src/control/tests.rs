use super::*;
use pg_types::FullXid;
use proptest::prelude::*;

/// A control file as a server of `major` would write it right after it stopped.
fn sample(major: PgMajor) -> Box<[u8; CONTROL_FILE_LEN]> {
    let mut bytes = Box::new([0; CONTROL_FILE_LEN]);
    let mut put = |at: usize, value: u64, len: usize| {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    put(0, 7_000_000_000_000_000_001, 8);
    put(8, u64::from(control_version_of(major)), 4);
    put(12, u64::from(major.catalog_version()), 4);
    put(16, 1, 4);
    put(32, 0x0150_0028, 8);
    for (at, value) in [
        (204, 8),
        (216, 8192),
        (220, 131_072),
        (224, 8192),
        (228, 16 << 20),
    ] {
        put(at, value, 4);
    }
    for (at, value) in [
        (232, 64),
        (236, 32),
        (240, 1996),
        (244, 2048),
        (248, 1),
        (252, 1),
    ] {
        put(at, value, 4);
    }
    put(208, 1_234_567.0f64.to_bits(), 8);
    seal(&mut bytes);
    bytes
}

fn seal(bytes: &mut [u8; CONTROL_FILE_LEN]) {
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    let end = if version >= 1800 { 292 } else { 288 };
    let crc = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..end + 4].copy_from_slice(&crc);
}

fn refusal(major: PgMajor, change: impl FnOnce(&mut [u8; CONTROL_FILE_LEN])) -> ControlFileError {
    let mut bytes = sample(major);
    change(&mut bytes);
    seal(&mut bytes);
    ControlFile::decode(&bytes[..]).unwrap_err()
}

fn put_u32(bytes: &mut [u8; CONTROL_FILE_LEN], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn every_major_is_read_and_written_back_unchanged() {
    for major in PgMajor::ALL {
        let bytes = sample(major);
        let control = ControlFile::decode(&bytes[..]).unwrap();
        assert_eq!(control.major(), major);
        assert_eq!(control.state(), ClusterState::ShutDown);
        assert_eq!(control.encode(), *bytes);
        assert_eq!(
            control.default_char_signed().is_some(),
            major == PgMajor::V18
        );
    }
}

#[test]
fn setters_change_their_fields_only() {
    for major in PgMajor::ALL {
        let mut control = ControlFile::decode(&sample(major)[..]).unwrap();
        let checkpoint = CheckPoint {
            redo: Lsn(0x0200_0028),
            timeline: TimelineId(3),
            prev_timeline: TimelineId(2),
            next_xid: FullXid::new(1, 900),
            ..CheckPoint::default()
        };
        let parameters = ParameterLimits {
            wal_level: 2,
            wal_log_hints: true,
            max_connections: 101,
            max_worker_processes: 9,
            max_wal_senders: 11,
            max_prepared_transactions: 5,
            max_locks_per_transaction: 65,
            track_commit_timestamp: true,
        };
        control.set_state(ClusterState::InProduction);
        control.set_time(1_800_000_000);
        control.set_checkpoint_lsn(Lsn(0x0200_0028));
        control.set_checkpoint(&checkpoint);
        control.set_unlogged_lsn(Lsn(1000));
        control.set_min_recovery_point(Lsn(77), TimelineId(4));
        control.set_parameters(&parameters);
        control.clear_backup();
        let again = ControlFile::decode(&control.encode()).unwrap();
        assert_eq!(again.state(), ClusterState::InProduction);
        assert_eq!(again.time(), 1_800_000_000);
        assert_eq!(again.checkpoint_lsn(), Lsn(0x0200_0028));
        assert_eq!(again.checkpoint(), checkpoint);
        assert_eq!(again.unlogged_lsn(), Lsn(1000));
        assert_eq!(again.min_recovery_point(), (Lsn(77), TimelineId(4)));
        assert_eq!(again.parameters(), parameters);
        assert_eq!(again.segment_size(), SegmentSize::DEFAULT);
        assert!(again.data_checksums() && !again.backup_end_required());
        assert_eq!(again.mock_authentication_nonce(), [0; 32]);
        assert_eq!(
            again.crc().to_le_bytes(),
            control.encode()[crc_range(major)]
        );
    }
}

fn crc_range(major: PgMajor) -> std::ops::Range<usize> {
    if major == PgMajor::V18 {
        292..296
    } else {
        288..292
    }
}

#[test]
fn each_difference_has_its_own_refusal() {
    use ControlFileError as E;
    let v15 = PgMajor::V15;
    let bytes = sample(v15);
    assert_eq!(
        ControlFile::decode(&bytes[..8191]),
        Err(E::Length { found: 8191 })
    );
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    assert!(matches!(
        ControlFile::decode(&damaged[..]),
        Err(E::Crc { .. })
    ));
    let swapped = 1300u32.swap_bytes();
    assert_eq!(
        refusal(v15, |b| put_u32(b, 8, swapped)),
        E::ByteOrder { found: swapped }
    );
    assert_eq!(
        refusal(v15, |b| put_u32(b, 8, 1201)),
        E::ControlVersion { found: 1201 }
    );
    assert_eq!(
        refusal(v15, |b| put_u32(b, 12, 202_200_000)),
        E::CatalogVersion { found: 202_200_000 }
    );
    assert!(matches!(
        refusal(v15, |b| put_u32(b, 12, PgMajor::V17.catalog_version())),
        E::VersionMismatch {
            major: 17,
            expected: 1700,
            found: 1300,
            ..
        }
    ));
    assert_eq!(refusal(v15, |b| put_u32(b, 16, 7)), E::State { found: 7 });
    assert!(matches!(
        refusal(v15, |b| b[208] = 1),
        E::FloatFormat { .. }
    ));
    assert_eq!(refusal(v15, |b| b[248] = 0), E::FloatByReference);
    assert_eq!(
        refusal(v15, |b| put_u32(b, 228, 3 << 20)),
        E::SegmentSize { found: 3 << 20 }
    );
    assert_eq!(
        refusal(v15, |b| put_u32(b, 252, 2)),
        E::ChecksumVersion { found: 2 }
    );
}

#[test]
fn each_compiled_in_number_is_named() {
    let cases = [
        (204, "MAXIMUM_ALIGNOF"),
        (216, "BLCKSZ"),
        (220, "RELSEG_SIZE"),
        (224, "XLOG_BLCKSZ"),
        (232, "NAMEDATALEN"),
        (236, "INDEX_MAX_KEYS"),
        (240, "TOAST_MAX_CHUNK_SIZE"),
        (244, "LOBLKSIZE"),
    ];
    for major in PgMajor::ALL {
        for (at, name) in cases {
            match refusal(major, |bytes| put_u32(bytes, at, 4)) {
                ControlFileError::CompiledIn { what, found, .. } => {
                    assert_eq!((what, found), (name, 4));
                }
                other => panic!("{name}: {other}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        at in 0usize..300,
    ) {
        let _ = ControlFile::decode(&bytes);
        let mut file = sample(PgMajor::V18);
        let len = bytes.len().min(CONTROL_FILE_LEN - at);
        file[at..at + len].copy_from_slice(&bytes[..len]);
        seal(&mut file);
        if let Ok(control) = ControlFile::decode(&file[..]) {
            prop_assert_eq!(control.encode(), *file);
        }
    }
}
