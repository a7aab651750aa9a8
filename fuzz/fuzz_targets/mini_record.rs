//! A mini-record of arbitrary bytes decodes or is refused; made from a decoded record it keeps the
//! main data and its own block.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_types::PgMajor;
use pg_wal::{MiniRecord, Record, Target};

fuzz_target!(|input: &[u8]| {
    let Ok(mini) = MiniRecord::decode(input) else {
        return;
    };
    for major in PgMajor::ALL {
        let mut fixed = mini.record.to_vec();
        let len = fixed.len() as u32;
        if let Some(field) = fixed.first_chunk_mut() {
            *field = len.to_le_bytes();
        }
        let Ok(record) = Record::decode(&fixed, major) else {
            continue;
        };
        let targets = record.blocks.iter().map(|block| Target::Block(block.id));
        for target in targets.chain([Target::Implied]) {
            let mut out = Vec::new();
            MiniRecord::encode_from(&record, target, true, false, true, &mut out);
            let again = MiniRecord::decode(&out).expect("an encoded mini-record decodes");
            let slim = again.decode_record(major).expect("its record decodes");
            assert_eq!(slim.main, record.main);
            if let Target::Block(id) = target {
                assert_eq!(slim.block(id), record.block(id));
            }
        }
    }
});
