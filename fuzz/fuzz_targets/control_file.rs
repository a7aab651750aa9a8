//! A control file of arbitrary bytes, with its checksum put right so that what is behind it is reached.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_page::ControlFile;

/// Length of `pg_control`.
const LEN: usize = 8192;

fuzz_target!(|input: &[u8]| {
    let _ = ControlFile::decode(input);
    let mut file = vec![0; LEN];
    let len = input.len().min(LEN);
    file[..len].copy_from_slice(&input[..len]);
    // Where the checksum lies depends on the major: 292 from 18 on, 288 before.
    for at in [288, 292] {
        let mut fixed = file.clone();
        let crc = crc32c::crc32c(&fixed[..at]);
        fixed[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        if let Ok(control) = ControlFile::decode(&fixed) {
            assert_eq!(control.encode()[..], fixed[..]);
            let _ = (control.checkpoint(), control.parameters(), control.segment_size());
        }
    }
});
