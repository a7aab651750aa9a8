//! Relation maps, two-phase files, replication origins and timeline histories of arbitrary bytes, with
//! their checksums put right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_page::{RelationMap, ReplicationOrigins, TimelineHistory, TwoPhaseState};
use pg_types::{PgMajor, TimelineId};

fn with_crc(input: &[u8]) -> Vec<u8> {
    let mut file = input.to_vec();
    file.extend_from_slice(&crc32c::crc32c(input).to_le_bytes());
    file
}

fuzz_target!(|input: &[u8]| {
    for major in PgMajor::ALL {
        let mut map = input.to_vec();
        map.resize(RelationMap::file_len(major) - 4, 0);
        let mut map = with_crc(&map);
        // To 15 the file ends in four bytes of padding behind the checksum.
        let _ = RelationMap::decode(&map, major);
        map.truncate(map.len() - 8);
        let crc = crc32c::crc32c(&map[..map.len() - 4]);
        let at = map.len() - 4;
        map[at..].copy_from_slice(&crc.to_le_bytes());
        map.extend_from_slice(&[0; 4]);
        let _ = RelationMap::decode(&map, major);
        let _ = TwoPhaseState::decode_file(&with_crc(input), major);
        let _ = TwoPhaseState::decode_record(input, major);
    }
    let _ = ReplicationOrigins::decode(&with_crc(input));
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(history) = TimelineHistory::parse(TimelineId(9), text)
    {
        let again = TimelineHistory::parse(TimelineId(9), &history.to_string());
        assert_eq!(again.as_ref(), Ok(&history));
    }
});
