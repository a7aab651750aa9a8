//! An image of arbitrary bytes restores a page with zeros in its hole, or is refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_types::BLCKSZ;
use pg_wal::{BlockImage, Compression};

fuzz_target!(|input: (u8, u16, u16, &[u8])| {
    let (method, hole_offset, hole_length, bytes) = input;
    let compression = match method % 4 {
        0 => None,
        1 => Some(Compression::Pglz),
        2 => Some(Compression::Lz4),
        _ => Some(Compression::Zstd),
    };
    let image = BlockImage {
        bytes,
        hole_offset,
        hole_length,
        compression,
        apply: true,
    };
    let mut page = [0xAA; BLCKSZ];
    if image.restore(&mut page).is_ok() {
        let from = usize::from(hole_offset);
        assert!(
            page[from..from + usize::from(hole_length)]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
});
