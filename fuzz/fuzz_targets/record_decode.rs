//! A record of arbitrary bytes decodes or is refused, as every major; its parts lie within it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_types::PgMajor;
use pg_wal::Record;

fuzz_target!(|input: Vec<u8>| {
    let mut bytes = input;
    let _ = Record::verify_checksum(&bytes);
    // With the right length the body is reached.
    let len = bytes.len() as u32;
    if let Some(field) = bytes.first_chunk_mut() {
        *field = len.to_le_bytes();
    }
    for major in PgMajor::ALL {
        let Ok(record) = Record::decode(&bytes, major) else {
            continue;
        };
        let images = record.blocks.iter().filter_map(|block| block.image);
        let payload = record.main.len()
            + record
                .blocks
                .iter()
                .map(|block| block.data.len())
                .sum::<usize>()
            + images.map(|image| image.bytes.len()).sum::<usize>();
        assert!(payload + 24 <= bytes.len());
        assert!(record.blocks.is_sorted_by(|a, b| a.id < b.id));
    }
});
