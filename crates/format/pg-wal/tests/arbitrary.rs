//! Whatever bytes come in, decoders end in a value or an error; and mini-records keep what they
//! must.

mod generate;

use generate::{major, parts};
use pg_types::{BLCKSZ, Lsn, PgMajor};
use pg_wal::records::{
    clog, commit_ts, dbase, multixact, relmap, replorigin, smgr, standby, tblspc, xact, xlog,
};
use pg_wal::{
    BlockImage, Compression, MiniError, MiniRecord, Record, RmgrId, Target, encode_record,
};
use proptest::prelude::*;

/// Runs every decoder of main data, whatever the record's resource manager.
fn decode_main(record: &Record<'_>) {
    let mut record = record.clone();
    for rmgr in 0..=21 {
        record.header.rmid = RmgrId(rmgr);
        let text = match record.header.rmid {
            RmgrId::XLOG => format!("{:?}", xlog::XlogRecord::decode(&record)),
            RmgrId::XACT => format!("{:?}", xact::XactRecord::decode(&record)),
            RmgrId::SMGR => format!("{:?}", smgr::SmgrRecord::decode(&record)),
            RmgrId::CLOG => format!("{:?}", clog::ClogRecord::decode(&record)),
            RmgrId::DBASE => format!("{:?}", dbase::DbaseRecord::decode(&record)),
            RmgrId::TBLSPC => format!("{:?}", tblspc::TblspcRecord::decode(&record)),
            RmgrId::MULTIXACT => format!("{:?}", multixact::MultiXactRecord::decode(&record)),
            RmgrId::RELMAP => format!("{:?}", relmap::RelmapUpdate::decode(&record)),
            RmgrId::STANDBY => format!("{:?}", standby::StandbyRecord::decode(&record)),
            RmgrId::COMMIT_TS => format!("{:?}", commit_ts::CommitTsRecord::decode(&record)),
            RmgrId::REPLORIGIN => format!("{:?}", replorigin::ReplOriginRecord::decode(&record)),
            _ => continue,
        };
        // Formatting walks the arrays; no decoder may take another's record.
        assert!(!text.contains("WrongRmgr"), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn records_of_arbitrary_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..400), major in major()) {
        let _ = Record::verify_checksum(&bytes);
        let _ = Record::decode(&bytes, major);
        // With the right length the body is reached.
        let len = bytes.len() as u32;
        if let Some(field) = bytes.first_chunk_mut() {
            *field = len.to_le_bytes();
        }
        if let Ok(record) = Record::decode(&bytes, major) {
            prop_assert!(record.main.len() <= bytes.len());
        }
        let _ = MiniRecord::decode(&bytes).map(|mini| mini.decode_record(major).is_ok());
    }

    #[test]
    fn damaged_records(parts in parts(), major in major(), at in any::<prop::sample::Index>(), value: u8) {
        let mut bytes = parts.encode(major);
        prop_assert!(Record::verify_checksum(&bytes).is_ok());
        prop_assert_eq!(Record::decode(&bytes, major).unwrap().main, parts.main.as_slice());
        let at = at.index(bytes.len());
        let changed = bytes[at] != value;
        bytes[at] = value;
        if changed && !(18..20).contains(&at) {
            prop_assert!(Record::verify_checksum(&bytes).is_err());
        }
        if let Ok(record) = Record::decode(&bytes, major) {
            let mut page = [0; BLCKSZ];
            for image in record.blocks.iter().filter_map(|block| block.image) {
                let _ = image.restore(&mut page);
            }
        }
    }

    #[test]
    fn main_data_of_arbitrary_bytes(
        info: u8,
        // Small counts, so that the parts behind them are reached.
        main in prop::collection::vec(prop_oneof![any::<u8>(), 0..3u8, Just(0)], 0..200),
        major in major(),
    ) {
        let bytes = encode_record(RmgrId::XACT, info, 7, Lsn(8), &main);
        decode_main(&Record::decode(&bytes, major).unwrap());
    }

    #[test]
    fn images_of_arbitrary_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        hole_offset: u16,
        hole_length: u16,
        method in 0..4u8,
    ) {
        let compression = match method {
            0 => None,
            1 => Some(Compression::Pglz),
            2 => Some(Compression::Lz4),
            _ => Some(Compression::Zstd),
        };
        let image = BlockImage { bytes: &bytes, hole_offset, hole_length, compression, apply: true };
        let _ = image.restore(&mut [0; BLCKSZ]);
    }

    #[test]
    fn a_mini_record_keeps_what_its_page_needs(
        parts in parts(),
        major in major(),
        choice in any::<prop::sample::Index>(),
        implied: bool,
        initializes: bool,
        hint_lsn: bool,
        keep_image: bool,
    ) {
        let bytes = parts.encode(major);
        let record = Record::decode(&bytes, major).unwrap();
        let target = match record.blocks.get(choice.index(record.blocks.len() + 1)) {
            Some(block) if !implied => Target::Block(block.id),
            _ => Target::Implied,
        };
        // Whatever was in the buffer before stays.
        let mut out = vec![0xEE; 3];
        MiniRecord::encode_from(&record, target, initializes, hint_lsn, keep_image, &mut out);
        prop_assert_eq!(&out[..3], &[0xEE; 3]);
        let mini = MiniRecord::decode(&out[3..]).unwrap();
        prop_assert_eq!((mini.target, mini.initializes, mini.hint_lsn), (target, initializes, hint_lsn));
        let slim = mini.decode_record(major).unwrap();
        prop_assert_eq!(slim.main, record.main);
        prop_assert_eq!(slim.origin, record.origin);
        let (a, b) = (&slim.header, &record.header);
        prop_assert_eq!((a.xid, a.prev, a.info, a.rmid), (b.xid, b.prev, b.info, b.rmid));
        prop_assert_eq!(slim.blocks.len(), record.blocks.len());
        for (slim, whole) in slim.blocks.iter().zip(&record.blocks) {
            let mine = target == Target::Block(whole.id);
            let mut wanted = *whole;
            if !mine {
                wanted.data = &[];
            }
            if !(mine && keep_image) {
                wanted.image = None;
            }
            prop_assert_eq!(slim, &wanted);
        }
    }
}

#[test]
fn the_prefix_of_a_mini_record_is_checked() {
    let bytes = encode_record(RmgrId::HEAP, 0, 5, Lsn(8), b"main");
    let record = Record::decode(&bytes, PgMajor::V15).unwrap();
    let mut mini = Vec::new();
    MiniRecord::encode_from(&record, Target::Implied, true, false, false, &mut mini);
    assert_eq!(mini[..4], [0xFF, 1, 0, 0]);
    let with = |index: usize, value: u8| {
        let mut mini = mini.clone();
        mini[index] = value;
        MiniRecord::decode(&mini).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 33), MiniError::UnknownTarget { target: 33 });
    assert_eq!(
        with(1, 4),
        MiniError::UnknownFlags {
            flags: 4,
            padding: 0
        }
    );
    assert_eq!(
        with(3, 1),
        MiniError::UnknownFlags {
            flags: 1,
            padding: 0x100
        }
    );
    assert_eq!(
        MiniRecord::decode(&mini[..27]),
        Err(MiniError::Truncated { have: 27 })
    );
}
