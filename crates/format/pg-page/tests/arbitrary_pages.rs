//! No page, however damaged, makes a view of it panic or look outside of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pg_page::btree::{BtreeMeta, BtreeSpecial};
use pg_page::slru::{
    ClogPosition, CommitTsPosition, MultiXactMemberPosition, MultiXactOffsetPosition,
};
use pg_page::visibility_map::{VM_BITS, VmPosition};
use pg_page::{HeapTupleHeader, Page, PageHeader, checksum, item, page_header, slru};
use pg_types::{BLCKSZ, Lsn, Slru};
use proptest::prelude::*;

/// A page whose header and line pointers are arbitrary and whose rest repeats a pattern.
fn arbitrary_page() -> impl Strategy<Value = Page> {
    (prop::collection::vec(any::<u8>(), 24..600), any::<u8>()).prop_map(|(bytes, fill)| {
        let mut page = [fill; BLCKSZ];
        page[..bytes.len()].copy_from_slice(&bytes);
        page
    })
}

proptest! {
    #[test]
    fn views_stay_inside_of_the_page(page in arbitrary_page()) {
        let header = PageHeader::read(&page);
        let special = page_header::special_area(&page);
        prop_assert_eq!(special.is_some(), usize::from(header.special) <= BLCKSZ);
        prop_assert!(usize::from(item::item_count(&page)) <= (BLCKSZ - 24) / 4);
        for (number, id) in item::items(&page) {
            prop_assert_eq!(item::item(&page, number), Some(id));
            if let Some(bytes) = item::item_bytes(&page, id) {
                prop_assert_eq!(bytes.len(), usize::from(id.len()));
                prop_assert_eq!(HeapTupleHeader::read(bytes).is_some(), bytes.len() >= 23);
            }
        }
        prop_assert_eq!(BtreeSpecial::read(&page).is_some(), header.special == 8176);
        let _ = BtreeMeta::read(&page);
    }

    #[test]
    fn a_set_checksum_matches_and_is_the_only_change(page in arbitrary_page(), block in any::<u32>()) {
        let mut with = page;
        pg_page::set_checksum(&mut with, block);
        prop_assert!(pg_page::checksum_matches(&with, block));
        if !page_header::is_new(&page) {
            prop_assert_eq!(page_header::stored_checksum(&with), plain_checksum(&page, block));
        }
        page_header::set_stored_checksum(&mut with, page_header::stored_checksum(&page));
        prop_assert_eq!(with, page);
        prop_assert_ne!(checksum(&page, block), 0);
    }

    #[test]
    fn an_lsn_is_read_back(lsn in any::<u64>(), mut page in arbitrary_page()) {
        page_header::set_lsn(&mut page, Lsn(lsn));
        prop_assert_eq!(page_header::lsn(&page), Lsn(lsn));
    }

    #[test]
    fn every_id_has_a_place_in_a_page(id in any::<u32>()) {
        let page = [0; BLCKSZ];
        let inside = |byte: u16, len: usize| usize::from(byte) + len <= BLCKSZ;
        let vm = VmPosition::of(id);
        prop_assert!(inside(vm.byte, 1) && vm.byte >= 24 && vm.shift <= 6);
        let mut map = page;
        prop_assert!(vm.set(&mut map, VM_BITS));
        prop_assert_eq!(map.iter().filter(|byte| **byte != 0).count(), 1);
        let clog = ClogPosition::of(id);
        prop_assert!(inside(clog.byte, 1) && clog.page <= slru::last_page(Slru::Clog));
        let offset = MultiXactOffsetPosition::of(id);
        prop_assert!(inside(offset.byte, 4) && offset.page <= slru::last_page(Slru::MultiXactOffsets));
        let member = MultiXactMemberPosition::of(id);
        prop_assert!(inside(member.xid_byte, 4) && member.status_byte < member.xid_byte);
        prop_assert!(member.page <= slru::last_page(Slru::MultiXactMembers));
        let stamp = CommitTsPosition::of(id);
        prop_assert!(inside(stamp.byte, 10) && stamp.page <= slru::last_page(Slru::CommitTs));
    }
}

/// The checksum as its definition reads, column by column.
fn plain_checksum(page: &Page, block: u32) -> u16 {
    const SEEDS: &str = "5B1F36E9 B8525960 02AB50AA 1DE66D2A 79FF467A 9BB9F8A3 217E7CD2 83E13D2C \
        F8D4474F E39EB970 42C6AE16 993216FA 7B093B5D 98DAFF3C F718902A 0B1C9CDB E58F764B 187636BC \
        5D7B3BB1 E73DE7DE 92BEC979 CCA6C0B2 304A0979 85AA43D4 783125BB 6CA8EAA2 E407EAC6 4B5CFC3E \
        9FBF8C76 15CA20BE F2CA9FD3 959BD756";
    let mut page = *page;
    page[8..10].fill(0);
    let mut folded = block;
    for (column, seed) in SEEDS.split_whitespace().enumerate() {
        let mut hash = u32::from_str_radix(seed, 16).unwrap();
        for row in 0..66 {
            let at = row * 128 + column * 4;
            let word = page
                .get(at..at + 4)
                .map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()));
            let mixed = hash ^ word;
            hash = mixed.wrapping_mul(16_777_619) ^ (mixed >> 17);
        }
        folded ^= hash;
    }
    u16::try_from(folded % 65_535 + 1).unwrap()
}
