//! Any record on any page: an error or a page, never a panic or a write outside of the page.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_redo::{Facts, RedoContext, page_changes, redo};
use pg_types::{BLCKSZ, Lsn, PgMajor};
use pg_wal::{MiniRecord, Record};

fuzz_target!(|data: &[u8]| {
    let Some((&[major, rmgr, seed], record)) = data.split_first_chunk::<3>() else { return };
    let major = PgMajor::ALL[usize::from(major) % PgMajor::ALL.len()];
    // The fuzzer need not find the length field: the record is all that is left.
    let mut bytes = record.to_vec();
    if let Some(length) = bytes.first_chunk_mut::<4>() {
        *length = (record.len() as u32).to_le_bytes();
    }
    if let Some(rmid) = bytes.get_mut(17) {
        *rmid = rmgr;
    }
    let Ok(record) = Record::decode(&bytes, major) else { return };
    let facts = Facts { major, hint_lsn: seed & 1 != 0, track_commit_timestamp: seed & 2 != 0 };
    let mut changes = Vec::new();
    let _ = page_changes(&record, &facts, &mut |change| {
        if changes.len() < 64 {
            changes.push(change);
        }
    });
    for change in changes {
        // A page with a few tuples, or one that the rest of the record fills with anything.
        let mut page = [0u8; BLCKSZ];
        if seed & 4 != 0 {
            let mut state = u32::from(seed) | 0x9E37_0000;
            for byte in &mut page {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
        }
        if seed & 8 == 0 {
            let special: u16 = if seed & 16 == 0 { 8192 } else { 8176 };
            let lower: u16 = 24 + 4 * u16::from(seed >> 5);
            let upper: u16 = special - 128 * u16::from(seed >> 5);
            page[12..14].copy_from_slice(&lower.to_le_bytes());
            page[14..16].copy_from_slice(&upper.to_le_bytes());
            page[16..18].copy_from_slice(&special.to_le_bytes());
            for item in 0..u32::from(seed >> 5) {
                let at = 24 + item as usize * 4;
                let pointer = (u32::from(upper) + item * 128) | 1 << 15 | 120 << 17;
                page[at..at + 4].copy_from_slice(&pointer.to_le_bytes());
            }
        }
        let mut mini = Vec::new();
        let (initializes, keep_image) = (change.initializes, change.keep_image);
        MiniRecord::encode_from(
            &record, change.target, initializes, facts.hint_lsn, keep_image, &mut mini,
        );
        let mini = MiniRecord::decode(&mini).expect("own encoding");
        let Ok(slim) = mini.decode_record(major) else { continue };
        let _ = redo(&mut page, change.key, &mini, &slim, Lsn(0x1_2345_6780), &RedoContext { major });
    }
});
