//! Views of a page of arbitrary bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_page::btree::{BtreeMeta, BtreeSpecial};
use pg_page::{HeapTupleHeader, PageHeader, item};

fuzz_target!(|input: &[u8]| {
    let mut page = [0u8; 8192];
    let len = input.len().min(page.len());
    page[..len].copy_from_slice(&input[..len]);
    let _ = PageHeader::read(&page).is_sane();
    for (_, item) in item::items(&page) {
        if let Some(bytes) = item::item_bytes(&page, item) {
            let _ = HeapTupleHeader::read(bytes);
        }
    }
    let _ = (BtreeSpecial::read(&page), BtreeMeta::read(&page));
    let _ = pg_page::checksum(&page, 7);
});
