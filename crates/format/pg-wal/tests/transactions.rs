//! Commits, aborts and prepared transactions, laid out as each major lays them out.

mod fields;

use fields::{Data, rel};
use pg_types::{Lsn, PgMajor};
use pg_wal::records::MainDataError;
use pg_wal::records::xact::{XactOrigin, XactRecord};
use pg_wal::{Record, RmgrId, encode_record};

const HAS_INFO: u8 = 0x80;

/// Every combination of optional parts, in every major, as a commit and as an abort.
#[test]
fn each_part_of_a_commit_is_found_whatever_else_is_there() {
    let bits = [
        1 << 0,
        1 << 1,
        1 << 2,
        1 << 3,
        1 << 4,
        1 << 5,
        1 << 7,
        1 << 8,
    ];
    for major in PgMajor::ALL {
        for choice in 0..1u32 << bits.len() {
            let has = |bit: u32| {
                bits.iter()
                    .enumerate()
                    .any(|(at, it)| *it == bit && choice >> at & 1 == 1)
            };
            if has(1 << 8) && major == PgMajor::V14 {
                continue;
            }
            let xinfo = bits.iter().filter(|bit| has(**bit)).sum::<u32>() | 1 << 30;
            let mut data = Data::default().u64(77).u32(xinfo);
            if has(1) {
                data = data.u32(5).u32(1663);
            }
            if has(2) {
                data = data.u32(3).u32(901).u32(902).u32(903);
            }
            if has(4) {
                data = data
                    .u32(2)
                    .u32(1663)
                    .u32(5)
                    .u32(40)
                    .u32(1663)
                    .u32(5)
                    .u32(41);
            }
            if has(1 << 8) {
                let len = if major == PgMajor::V18 { 16 } else { 12 };
                data = data.u32(2).bytes(&vec![0xCC; 2 * len]);
            }
            if has(8) {
                data = data.u32(1).bytes(&[0xDD; 16]);
            }
            if has(1 << 4) {
                data = data.u32(555);
                if has(1 << 7) {
                    data = data.bytes(b"gid\0");
                }
            }
            if has(1 << 5) {
                data = data.u64(0x1234).u64(88);
            }
            for info in [0x00, 0x20, 0x30, 0x40] {
                let needed = if choice % 37 == 0 { data.0.len() } else { 0 };
                let prepared = info >= 0x30;
                if prepared && !has(1 << 4) {
                    let bytes = encode_record(RmgrId::XACT, info | HAS_INFO, 900, Lsn(64), &data.0);
                    let record = Record::decode(&bytes, major).unwrap();
                    let error = XactRecord::decode(&record).unwrap_err();
                    assert!(matches!(error, MainDataError::BadField { .. }), "{error}");
                    continue;
                }
                data.check(RmgrId::XACT, info | HAS_INFO, major, needed, |record| {
                    let decoded = XactRecord::decode(record)?;
                    let end = match decoded {
                        XactRecord::Commit(end) if matches!(info, 0x00 | 0x30) => end,
                        XactRecord::Abort(end) if matches!(info, 0x20 | 0x40) => end,
                        other => panic!("{other:?}"),
                    };
                    let some = |bit, value: usize| if has(bit) { value } else { 0 };
                    assert_eq!((end.time, end.xinfo, end.prepared), (77, xinfo, prepared));
                    assert_eq!(end.database, has(1).then_some((5, 1663)));
                    let subxacts: Vec<u32> = end.subxacts.iter().collect();
                    assert_eq!(subxacts, [901, 902, 903][..some(2, 3)]);
                    let dropped: Vec<_> = end.dropped.iter().collect();
                    assert_eq!(dropped, [rel(40), rel(41)][..some(4, 2)]);
                    assert_eq!(end.dropped_stats, some(1 << 8, 2));
                    assert_eq!(end.invalidations, some(8, 1));
                    assert_eq!(end.xid, if has(1 << 4) { 555 } else { 900 });
                    let named = has(1 << 4) && has(1 << 7);
                    assert_eq!(end.gid, if named { &b"gid"[..] } else { b"" });
                    let origin = XactOrigin {
                        lsn: Lsn(0x1234),
                        time: 88,
                    };
                    assert_eq!(end.origin, has(1 << 5).then_some(origin));
                    Ok::<_, MainDataError>(())
                });
            }
        }
    }
}

#[test]
fn a_plain_commit_has_only_its_time() {
    Data::default()
        .u64(12)
        .check(RmgrId::XACT, 0, PgMajor::V16, 8, |record| {
            let XactRecord::Commit(end) = XactRecord::decode(record)? else {
                panic!()
            };
            assert_eq!((end.xid, end.time, end.xinfo), (900, 12, 0));
            assert!(end.subxacts.is_empty() && end.dropped.is_empty());
            Ok::<_, MainDataError>(())
        });
}

#[test]
fn a_prepared_transaction_is_read_in_both_layouts() {
    for major in PgMajor::ALL {
        let mut data = Data::default()
            .u32(0x57F9_4534)
            .u32(0)
            .u32(700)
            .u32(5)
            .u64(99)
            .u32(10);
        data = data.u32(3).u32(1).u32(2);
        if major >= PgMajor::V15 {
            data = data.u32(1).u32(0);
        }
        data = data.u32(0).u8(1).u8(0).u16(6).u64(0x5678).u64(66);
        assert_eq!(data.0.len(), if major == PgMajor::V14 { 64 } else { 72 });
        data = data
            .bytes(b"gid-1\0")
            .align8()
            .u32(701)
            .u32(702)
            .u32(703)
            .align8();
        data = data.u32(1663).u32(5).u32(50).align8();
        data = data
            .u32(1663)
            .u32(5)
            .u32(51)
            .u32(1663)
            .u32(5)
            .u32(52)
            .align8();
        let needed = data.0.len();
        data = data.bytes(&[0xAB; 48]);
        let total = data.0.len() as u32 + 4;
        data.0[4..8].copy_from_slice(&total.to_le_bytes());
        let all = data.0.clone();
        data.check(RmgrId::XACT, 0x10, major, needed - 8, |record| {
            let XactRecord::Prepare(prepare) = XactRecord::decode(record)? else {
                panic!()
            };
            assert_eq!((prepare.xid, prepare.database, prepare.owner), (700, 5, 10));
            assert_eq!((prepare.time, prepare.gid), (99, &b"gid-1"[..]));
            assert_eq!(prepare.subxacts.iter().collect::<Vec<_>>(), [701, 702, 703]);
            assert_eq!(
                prepare.dropped_on_commit.iter().collect::<Vec<_>>(),
                [rel(50)]
            );
            assert_eq!(
                prepare.dropped_on_abort.iter().collect::<Vec<_>>(),
                [rel(51), rel(52)]
            );
            assert_eq!(
                prepare.origin,
                XactOrigin {
                    lsn: Lsn(0x5678),
                    time: 66
                }
            );
            assert_eq!(prepare.state, &all[..record.main.len()]);
            Ok::<_, MainDataError>(())
        });
    }
}

#[test]
fn negative_counts_are_impossible() {
    let data = Data::default().u64(1).u32(2).u32(u32::MAX);
    let bytes = encode_record(RmgrId::XACT, HAS_INFO, 1, Lsn(8), &data.0);
    let error = XactRecord::decode(&Record::decode(&bytes, PgMajor::V17).unwrap()).unwrap_err();
    let field = "number of subtransactions";
    assert_eq!(
        error,
        MainDataError::BadField {
            rmgr: RmgrId::XACT,
            info: 0,
            field
        }
    );
}
