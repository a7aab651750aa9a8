//! No record on no page panics or goes astray, and page changes are each named once; and what a
//! server does too rarely for the load of `equals_postgres`: wrap-arounds, cuts of the map, refusals.

#![allow(
    clippy::unwrap_used,
    reason = "this is a test; its helpers fail by panicking as it does"
)]

use pg_page::slru::{ClogPosition, MultiXactMemberPosition, MultiXactOffsetPosition, XidStatus};
use pg_page::visibility_map::VmPosition;
use pg_page::{Page, page_header};
use pg_redo::{Facts, PageChange, RedoContext, UnsupportedReason, page_changes, redo};
use pg_types::{BLCKSZ, ForkNumber, Lsn, PageKey, PgMajor, RelFileLocator, Slru};
use pg_wal::{MiniRecord, Record, RmgrId, encode_record};
use proptest::prelude::*;

const REL: RelFileLocator = RelFileLocator {
    spc: 1663,
    db: 5,
    rel: 16_384,
};
const END: Lsn = Lsn(0x1_0000_1000);

fn facts(major: PgMajor) -> Facts {
    Facts {
        major,
        hint_lsn: true,
        track_commit_timestamp: true,
    }
}

fn changes_of(record: &Record<'_>) -> Vec<PageChange> {
    let mut changes = Vec::new();
    page_changes(record, &facts(record.major), &mut |change| {
        changes.push(change)
    })
    .unwrap();
    changes
}

/// Applies every change of `record` to the page that `page_of` gives, through mini-records.
fn apply(record: &Record<'_>, pages: &mut Vec<(PageKey, Box<Page>)>) {
    for change in changes_of(record) {
        let mut bytes = Vec::new();
        let (initializes, keep) = (change.initializes, change.keep_image);
        MiniRecord::encode_from(record, change.target, initializes, true, keep, &mut bytes);
        let mini = MiniRecord::decode(&bytes).unwrap();
        let slim = mini.decode_record(record.major).unwrap();
        let at = pages
            .iter()
            .position(|(key, _)| *key == change.key)
            .unwrap_or_else(|| {
                pages.push((change.key, Box::new([0; BLCKSZ])));
                pages.len() - 1
            });
        let context = RedoContext {
            major: record.major,
        };
        redo(&mut pages[at].1, change.key, &mini, &slim, END, &context).unwrap();
    }
}

fn page(pages: &[(PageKey, Box<Page>)], key: PageKey) -> &Page {
    &pages.iter().find(|(known, _)| *known == key).unwrap().1
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn multixacts_wrap_around() {
    // The last multixact, whose members run over the end of the member numbers.
    let main = u32s(&[u32::MAX, u32::MAX - 1, 3, 100, 0, 101, 4, 102, 5]);
    let bytes = encode_record(RmgrId::MULTIXACT, 0x20, 0, Lsn(0), &main);
    let record = Record::decode(&bytes, PgMajor::V17).unwrap();
    let mut pages = Vec::new();
    apply(&record, &mut pages);
    let last = MultiXactOffsetPosition::of(u32::MAX);
    let first = MultiXactOffsetPosition::of(1);
    let offsets = |number| page(&pages, PageKey::slru(Slru::MultiXactOffsets, number));
    assert_eq!(last.offset(offsets(last.page)), u32::MAX - 1);
    assert_eq!(
        first.offset(offsets(first.page)),
        1,
        "the next multixact's members begin after the wrap"
    );
    for (number, member) in [
        (u32::MAX - 1, (100, 0)),
        (u32::MAX, (101, 4)),
        (0, (102, 5)),
    ] {
        let at = MultiXactMemberPosition::of(number);
        let members = page(&pages, PageKey::slru(Slru::MultiXactMembers, at.page));
        assert_eq!(at.member(members), member, "member {number}");
    }
    assert_eq!(pages.len(), 4);
}

#[test]
fn subtransactions_on_many_pages_are_each_named_once() {
    let xids: Vec<u32> = (0..5)
        .map(|page| 32_760 + page * 32_768)
        .flat_map(|xid| xid..xid + 16)
        .collect();
    let mut main = vec![0; 8];
    main.extend(u32s(&[2, xids.len() as u32]));
    main.extend(u32s(&xids));
    let bytes = encode_record(RmgrId::XACT, 0x20 | 0x80, 700, Lsn(0), &main);
    let record = Record::decode(&bytes, PgMajor::V15).unwrap();
    let mut pages = Vec::new();
    apply(&record, &mut pages);
    assert_eq!(
        changes_of(&record).len(),
        6,
        "pages 0 to 5 of the status, no timestamps of an abort"
    );
    for xid in xids.into_iter().chain([700]) {
        let at = ClogPosition::of(xid);
        let status = at.status(page(&pages, PageKey::slru(Slru::Clog, at.page)));
        assert_eq!(status, XidStatus::Aborted, "{xid}");
    }
}

#[test]
fn truncation_cuts_the_map_within_its_page() {
    let blocks = 32_672 + 6;
    let bytes = encode_record(
        RmgrId::SMGR,
        0x20,
        0,
        Lsn(0),
        &u32s(&[blocks, REL.spc, REL.db, REL.rel, 7]),
    );
    let record = Record::decode(&bytes, PgMajor::V16).unwrap();
    let key = PageKey::relation(REL, ForkNumber::Vm, 1);
    assert_eq!(
        changes_of(&record)
            .iter()
            .map(|change| change.key)
            .collect::<Vec<_>>(),
        [key]
    );
    let mut map = Box::new([0; BLCKSZ]);
    page_header::init(&mut map, 0);
    map[24..].fill(0xFF);
    let mut pages = vec![(key, map)];
    apply(&record, &mut pages);
    let map = page(&pages, key);
    assert_eq!(VmPosition::of(blocks - 1).bits(map), 3);
    assert_eq!(VmPosition::of(blocks).bits(map), 0);
    assert!(map[26..].iter().all(|byte| *byte == 0));
    // A page that never had bits does not come into being.
    let mut pages = Vec::new();
    apply(&record, &mut pages);
    assert!(page_header::is_zero(page(&pages, key)));
}

#[test]
fn what_is_unknown_is_refused_by_name() {
    for (rmgr, info, major) in [
        (RmgrId::XLOG, 0xC0, PgMajor::V17),
        (RmgrId::XLOG, 0xE0, PgMajor::V16),
        (RmgrId::XACT, 0x70, PgMajor::V17),
        (RmgrId::DBASE, 0x20, PgMajor::V14),
        (RmgrId::BTREE, 0xF0, PgMajor::V17),
        (RmgrId::GIST, 0x40, PgMajor::V17),
        (RmgrId::SPGIST, 0x00, PgMajor::V17),
        (RmgrId::COMMIT_TS, 0x20, PgMajor::V15),
        (RmgrId::SEQ, 0x10, PgMajor::V15),
    ] {
        let bytes = encode_record(rmgr, info, 0, Lsn(0), &[0; 64]);
        let record = Record::decode(&bytes, major).unwrap();
        let error = page_changes(&record, &facts(major), &mut |_| {}).unwrap_err();
        assert_eq!(
            (error.rmgr, error.info, &error.reason),
            (rmgr, info, &UnsupportedReason::UnknownInfo)
        );
    }
    for (rmgr, reason) in [
        (RmgrId(22), UnsupportedReason::UnknownRmgr),
        (RmgrId(130), UnsupportedReason::NoBlocks),
    ] {
        let bytes = encode_record(rmgr, 0, 0, Lsn(0), &[0; 8]);
        let record = Record::decode(&bytes, PgMajor::V17).unwrap();
        let error = page_changes(&record, &facts(PgMajor::V17), &mut |_| {}).unwrap_err();
        assert_eq!((error.rmgr, error.reason), (rmgr, reason));
    }
}

/// A record with one to five block references of which each is on a page of its own.
fn any_record() -> impl Strategy<Value = (PgMajor, Vec<u8>)> {
    let block = (
        proptest::collection::vec(any::<u8>(), 0..200),
        any::<bool>(),
        0u8..4,
    );
    (
        0..PgMajor::ALL.len(),
        prop_oneof![4 => 9u8..=11, 1 => 0u8..=21],
        any::<u8>(),
        proptest::collection::vec(block, 0..5),
        proptest::collection::vec(
            prop_oneof![2 => Just(0u8), 2 => 1u8..6, 1 => any::<u8>()],
            0..64,
        ),
    )
        .prop_map(|(major, rmgr, info, blocks, main)| {
            let (mut headers, mut payload) = (Vec::new(), Vec::new());
            for (id, (data, init, fork)) in blocks.iter().enumerate() {
                let fork = if *fork == 2 { 2 } else { 0 };
                let flags =
                    fork | if data.is_empty() { 0 } else { 0x20 } | if *init { 0x40 } else { 0 };
                headers.extend([id as u8, flags]);
                headers.extend((data.len() as u16).to_le_bytes());
                headers.extend(u32s(&[REL.spc, REL.db, REL.rel, id as u32]));
                payload.extend_from_slice(data);
            }
            headers.extend([255, main.len() as u8]);
            let len = 24 + headers.len() + payload.len() + main.len();
            let mut bytes = (len as u32).to_le_bytes().to_vec();
            bytes.extend([0; 20]);
            bytes[16] = info & 0xF0;
            bytes[17] = rmgr;
            bytes.extend(headers);
            bytes.extend(payload);
            bytes.extend(main);
            (PgMajor::ALL[major], bytes)
        })
}

/// A page with up to 31 tuples, plausible or not.
fn any_page() -> impl Strategy<Value = Box<Page>> {
    let items = proptest::collection::vec((any::<u16>(), 0u32..4, 0u32..400), 0..31);
    (any::<bool>(), any::<bool>(), items, any::<u8>(), 0usize..64).prop_map(
        |(btree, wild, items, fill, upper)| {
            let mut page = Box::new([fill; BLCKSZ]);
            let special: usize = if btree { 8176 } else { 8192 };
            let upper = special - upper * 120;
            page[10..12].fill(0);
            page[12..14].copy_from_slice(&(24 + 4 * items.len() as u16).to_le_bytes());
            page[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
            page[16..18].copy_from_slice(&(special as u16).to_le_bytes());
            for (number, (offset, state, len)) in items.into_iter().enumerate() {
                let offset = if wild {
                    u32::from(offset) & 0x7FFF
                } else {
                    (upper as u32 + u32::from(offset) % 7000 / 8 * 8).min(special as u32 - 8)
                };
                let item = offset | state << 15 | len << 17;
                page[24 + number * 4..28 + number * 4].copy_from_slice(&item.to_le_bytes());
                let at = offset as usize;
                if at + 8 <= special && len >= 8 {
                    // Perhaps an index tuple whose length fits.
                    page[at + 6..at + 8].copy_from_slice(&(len as u16).to_le_bytes());
                }
            }
            page
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_record_on_any_page_ends_in_a_page_or_an_error(
        (major, bytes) in any_record(),
        page in any_page(),
    ) {
        let record = Record::decode(&bytes, major).unwrap();
        let mut changes = Vec::new();
        let _ = page_changes(&record, &facts(major), &mut |change| changes.push(change));
        for (at, change) in changes.iter().enumerate() {
            prop_assert!(changes.iter().skip(at + 1).all(|other| other.key != change.key));
            let mut encoded = Vec::new();
            MiniRecord::encode_from(
                &record, change.target, change.initializes, true, change.keep_image, &mut encoded,
            );
            let mini = MiniRecord::decode(&encoded).unwrap();
            let slim = mini.decode_record(major).unwrap();
            let context = RedoContext { major };
            let (mut once, mut again) = (page.clone(), page.clone());
            let first = redo(&mut once, change.key, &mini, &slim, END, &context);
            let second = redo(&mut again, change.key, &mini, &slim, END, &context);
            // The full record does to the page what the slimmed one does.
            let mut whole = page.clone();
            let full = MiniRecord { record: &bytes, ..mini };
            let third = redo(&mut whole, change.key, &full, &record, END, &context);
            prop_assert_eq!(&first, &second);
            prop_assert_eq!(&first, &third);
            if first.is_ok() {
                prop_assert!(once == again && once == whole);
            }
        }
    }
}
