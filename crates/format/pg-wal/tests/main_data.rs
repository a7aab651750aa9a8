//! Main data of every record type but transactions', laid out as each major lays it out.

mod fields;

use fields::{Data, rel};
use pg_types::checkpoint::CheckPoint;
use pg_types::{ForkNumber, FullXid, Lsn, PgMajor, TimelineId};
use pg_wal::records::MainDataError;
use pg_wal::records::clog::ClogRecord;
use pg_wal::records::commit_ts::CommitTsRecord;
use pg_wal::records::dbase::DbaseRecord;
use pg_wal::records::multixact::{MultiXactMember, MultiXactRecord};
use pg_wal::records::relmap::RelmapUpdate;
use pg_wal::records::replorigin::ReplOriginRecord;
use pg_wal::records::smgr::{self, SmgrRecord};
use pg_wal::records::standby::StandbyRecord;
use pg_wal::records::tblspc::TblspcRecord;
use pg_wal::records::xlog::{self, XlogRecord};
use pg_wal::{Record, RmgrId, encode_record};

/// Decodes `data` and compares; `needed` bytes of it must be there.
macro_rules! decodes {
    ($decoder:ident, $rmgr:ident, $info:expr, $major:expr, $needed:expr, $data:expr, $expected:expr) => {
        $data.check(RmgrId::$rmgr, $info, $major, $needed, |record| {
            let decoded = $decoder::decode(record)?;
            assert_eq!(decoded, $expected);
            Ok::<_, MainDataError>(())
        })
    };
}

#[test]
fn files_of_relations_databases_and_tablespaces() {
    let old = PgMajor::V14;
    for major in PgMajor::ALL {
        let d = Data::default;
        let create = SmgrRecord::Create {
            rel: rel(9),
            fork: ForkNumber::Init,
        };
        decodes!(
            SmgrRecord,
            SMGR,
            0x10,
            major,
            16,
            d().u32(1663).u32(5).u32(9).u32(3),
            create
        );
        let cut = d().u32(77).u32(1663).u32(5).u32(9).u32(3);
        let flags = smgr::TRUNCATE_HEAP | smgr::TRUNCATE_VM;
        decodes!(
            SmgrRecord,
            SMGR,
            0x20,
            major,
            20,
            cut,
            SmgrRecord::Truncate {
                rel: rel(9),
                blocks: 77,
                flags
            }
        );

        let copy = DbaseRecord::CreateFileCopy {
            db: 1,
            space: 2,
            source_db: 3,
            source_space: 4,
        };
        decodes!(
            DbaseRecord,
            DBASE,
            0x00,
            major,
            16,
            d().u32(1).u32(2).u32(3).u32(4),
            copy
        );
        let dropped = d().u32(1).u32(2).u32(1663).u32(1700);
        dropped.check(
            RmgrId::DBASE,
            if major == old { 0x10 } else { 0x20 },
            major,
            16,
            |record| {
                let DbaseRecord::Drop { db, spaces } = DbaseRecord::decode(record)? else {
                    panic!()
                };
                assert_eq!(
                    (db, spaces.iter().collect::<Vec<_>>()),
                    (1, vec![1663, 1700])
                );
                Ok::<_, MainDataError>(())
            },
        );
        if major > old {
            let logged = DbaseRecord::CreateWalLog { db: 1, space: 2 };
            decodes!(
                DbaseRecord,
                DBASE,
                0x10,
                major,
                8,
                d().u32(1).u32(2),
                logged
            );
        }
        let space = TblspcRecord::Create {
            space: 8,
            path: b"/srv/x",
        };
        decodes!(
            TblspcRecord,
            TBLSPC,
            0x00,
            major,
            11,
            d().u32(8).bytes(b"/srv/x\0"),
            space
        );
        decodes!(
            TblspcRecord,
            TBLSPC,
            0x10,
            major,
            4,
            d().u32(8),
            TblspcRecord::Drop { space: 8 }
        );
    }
}

#[test]
fn pages_of_transaction_state_are_wider_from_17_on() {
    for major in PgMajor::ALL {
        let page = |page: u64| {
            if major >= PgMajor::V17 {
                Data::default().u64(page)
            } else {
                Data::default().u32(page as u32)
            }
        };
        let wide = if major >= PgMajor::V17 { 8 } else { 4 };
        decodes!(
            ClogRecord,
            CLOG,
            0x00,
            major,
            wide,
            page(6),
            ClogRecord::ZeroPage { page: 6 }
        );
        let truncate = ClogRecord::Truncate {
            page: 6,
            oldest_xid: 7,
            oldest_db: 8,
        };
        decodes!(
            ClogRecord,
            CLOG,
            0x10,
            major,
            wide + 8,
            page(6).u32(7).u32(8),
            truncate
        );
        decodes!(
            CommitTsRecord,
            COMMIT_TS,
            0x00,
            major,
            wide,
            page(6),
            CommitTsRecord::ZeroPage { page: 6 }
        );
        let truncate = CommitTsRecord::Truncate {
            page: 6,
            oldest_xid: 7,
        };
        decodes!(
            CommitTsRecord,
            COMMIT_TS,
            0x10,
            major,
            wide + 4,
            page(6).u32(7),
            truncate
        );
        let zero = MultiXactRecord::ZeroOffsetsPage { page: 6 };
        decodes!(MultiXactRecord, MULTIXACT, 0x00, major, wide, page(6), zero);
        let zero = MultiXactRecord::ZeroMembersPage { page: 6 };
        decodes!(MultiXactRecord, MULTIXACT, 0x10, major, wide, page(6), zero);
        let truncate = Data::default().u32(5).u32(1).u32(2).u32(3).u32(4);
        let expected = MultiXactRecord::Truncate {
            oldest_db: 5,
            start_multi: 1,
            end_multi: 2,
            start_member: 3,
            end_member: 4,
        };
        decodes!(
            MultiXactRecord,
            MULTIXACT,
            0x30,
            major,
            20,
            truncate,
            expected
        );
        let create = Data::default()
            .u32(11)
            .u32(22)
            .u32(2)
            .u32(900)
            .u32(4)
            .u32(901)
            .u32(0);
        create.check(RmgrId::MULTIXACT, 0x20, major, 28, |record| {
            let MultiXactRecord::Create {
                multi,
                offset,
                members,
            } = MultiXactRecord::decode(record)?
            else {
                panic!()
            };
            let member = |xid, status| MultiXactMember { xid, status };
            assert_eq!((multi, offset), (11, 22));
            assert_eq!(
                members.iter().collect::<Vec<_>>(),
                [member(900, 4), member(901, 0)]
            );
            Ok::<_, MainDataError>(())
        });
    }
}

#[test]
fn maps_origins_and_running_transactions() {
    for major in PgMajor::ALL {
        let map = vec![3; if major >= PgMajor::V16 { 524 } else { 512 }];
        let data = Data::default()
            .u32(5)
            .u32(1663)
            .u32(map.len() as u32)
            .bytes(&map);
        let expected = RelmapUpdate {
            db: 5,
            space: 1663,
            map: &map,
        };
        decodes!(RelmapUpdate, RELMAP, 0, major, data.0.len(), data, expected);
        let data = Data::default().u64(0x99).u16(4).u8(1).bytes(&[0; 5]);
        let expected = ReplOriginRecord::Set {
            origin: 4,
            remote_lsn: Lsn(0x99),
            force: true,
        };
        decodes!(ReplOriginRecord, REPLORIGIN, 0, major, 11, data, expected);
        let expected = ReplOriginRecord::Drop { origin: 4 };
        decodes!(
            ReplOriginRecord,
            REPLORIGIN,
            0x10,
            major,
            2,
            Data::default().u16(4),
            expected
        );
        let data = Data::default()
            .u32(2)
            .u32(1)
            .u8(1)
            .bytes(&[0; 3])
            .u32(30)
            .u32(20)
            .u32(29);
        let data = data.u32(20).u32(25).u32(26);
        data.check(RmgrId::STANDBY, 0x10, major, 36, |record| {
            let StandbyRecord::RunningXacts(running) = StandbyRecord::decode(record)? else {
                panic!()
            };
            assert!(running.subxid_overflow);
            let xids = (
                running.next_xid,
                running.oldest_running_xid,
                running.latest_completed_xid,
            );
            assert_eq!(xids, (30, 20, 29));
            assert_eq!(running.xids.iter().collect::<Vec<_>>(), [20, 25]);
            assert_eq!(running.subxids.iter().collect::<Vec<_>>(), [26]);
            Ok::<_, MainDataError>(())
        });
    }
}

#[test]
fn records_of_the_log_itself() {
    let checkpoint = CheckPoint {
        redo: Lsn(0x0100_0028),
        timeline: TimelineId(2),
        prev_timeline: TimelineId(1),
        next_xid: FullXid(0x1_0000_0300),
        next_oid: 24576,
        ..CheckPoint::default()
    };
    for major in PgMajor::ALL {
        let d = Data::default;
        let data = d().bytes(&checkpoint.encode(major));
        decodes!(
            XlogRecord,
            XLOG,
            0x00,
            major,
            88,
            data,
            XlogRecord::CheckpointShutdown(checkpoint)
        );
        decodes!(
            XlogRecord,
            XLOG,
            0x10,
            major,
            88,
            data,
            XlogRecord::CheckpointOnline(checkpoint)
        );
        decodes!(
            XlogRecord,
            XLOG,
            0x30,
            major,
            4,
            d().u32(24),
            XlogRecord::NextOid(24)
        );
        decodes!(XlogRecord, XLOG, 0x40, major, 0, d(), XlogRecord::Switch);
        decodes!(
            XlogRecord,
            XLOG,
            0x50,
            major,
            8,
            d().u64(9),
            XlogRecord::BackupEnd(Lsn(9))
        );
        decodes!(
            XlogRecord,
            XLOG,
            0x80,
            major,
            1,
            d().u8(1),
            XlogRecord::FpwChange(true)
        );
        decodes!(
            XlogRecord,
            XLOG,
            0xA0,
            major,
            0,
            d(),
            XlogRecord::FpiForHint
        );
        let name = XlogRecord::RestorePoint {
            time: 4,
            name: b"here",
        };
        decodes!(
            XlogRecord,
            XLOG,
            0x70,
            major,
            13,
            d().u64(4).bytes(b"here\0\0\0"),
            name
        );
        let end = XlogRecord::EndOfRecovery {
            time: 4,
            timeline: TimelineId(6),
            prev_timeline: TimelineId(5),
        };
        decodes!(
            XlogRecord,
            XLOG,
            0x90,
            major,
            16,
            d().u64(4).u32(6).u32(5).u32(1),
            end
        );
        let parameters = xlog::Parameters {
            max_connections: 100,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_transactions: 0,
            max_locks_per_transaction: 64,
            wal_level: 1,
            wal_log_hints: false,
            track_commit_timestamp: true,
        };
        let data = d()
            .u32(100)
            .u32(8)
            .u32(10)
            .u32(0)
            .u32(64)
            .u32(1)
            .u8(0)
            .u8(1);
        decodes!(
            XlogRecord,
            XLOG,
            0x60,
            major,
            26,
            data,
            XlogRecord::ParameterChange(parameters)
        );

        let redo = encode_record(
            RmgrId::XLOG,
            xlog::CHECKPOINT_REDO,
            0,
            Lsn(8),
            &[1, 0, 0, 0],
        );
        let decoded = XlogRecord::decode(&Record::decode(&redo, major).unwrap()).map(|_| ());
        let unknown = MainDataError::UnknownInfo {
            rmgr: RmgrId::XLOG,
            info: 0xE0,
            major,
        };
        assert_eq!(
            decoded,
            if major >= PgMajor::V17 {
                Ok(())
            } else {
                Err(unknown)
            }
        );
    }
}
