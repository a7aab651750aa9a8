//! Main data of arbitrary bytes decodes or is refused, for every resource manager with a decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_types::{Lsn, PgMajor};
use pg_wal::records::{
    clog, commit_ts, dbase, multixact, relmap, replorigin, smgr, standby, tblspc, xact, xlog,
};
use pg_wal::{Record, RmgrId, encode_record};

fuzz_target!(|input: (u8, &[u8])| {
    let (info, main) = input;
    let bytes = encode_record(RmgrId::XACT, info, 7, Lsn(8), main);
    for major in PgMajor::ALL {
        let mut record = Record::decode(&bytes, major).expect("an encoded record decodes");
        if let Ok(xact::XactRecord::Commit(end) | xact::XactRecord::Abort(end)) =
            xact::XactRecord::decode(&record)
        {
            let arrays = end.subxacts.iter().len() * 4 + end.dropped.iter().len() * 12;
            assert!(arrays + end.gid.len() <= main.len());
            assert_eq!(end.subxacts.iter().count(), end.subxacts.len());
        }
        let mut with = |rmgr| {
            record.header.rmid = rmgr;
            record.clone()
        };
        let _ = xlog::XlogRecord::decode(&with(RmgrId::XLOG));
        let _ = smgr::SmgrRecord::decode(&with(RmgrId::SMGR));
        let _ = clog::ClogRecord::decode(&with(RmgrId::CLOG));
        let _ = dbase::DbaseRecord::decode(&with(RmgrId::DBASE));
        let _ = tblspc::TblspcRecord::decode(&with(RmgrId::TBLSPC));
        let _ = multixact::MultiXactRecord::decode(&with(RmgrId::MULTIXACT));
        let _ = relmap::RelmapUpdate::decode(&with(RmgrId::RELMAP));
        let _ = standby::StandbyRecord::decode(&with(RmgrId::STANDBY));
        let _ = commit_ts::CommitTsRecord::decode(&with(RmgrId::COMMIT_TS));
        let _ = replorigin::ReplOriginRecord::decode(&with(RmgrId::REPLORIGIN));
    }
});
