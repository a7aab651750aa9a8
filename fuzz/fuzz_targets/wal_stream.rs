//! Arbitrary WAL, arriving in arbitrary pieces, gives records with valid checksums or an error; how
//! it is cut into pieces makes no difference.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use pg_wal::{Record, WalGeometry, WalPageHeader, WalStream};

const SEGMENT: u64 = 1 << 20;

fn split(log: &[u8], at: Lsn, piece: usize, scan: bool) -> Vec<(Lsn, Lsn, Vec<u8>)> {
    let size = SegmentSize::new(SEGMENT).expect("a valid size");
    let mut stream = if scan {
        WalStream::scan_from_page(at, PgMajor::V17, size)
    } else {
        WalStream::new(at, PgMajor::V17, size)
    };
    let mut found = Vec::new();
    for (index, bytes) in log.chunks(piece).enumerate() {
        stream
            .push(at.advance((index * piece) as u64), bytes)
            .expect("no gap");
        loop {
            match stream.next_record() {
                Ok(Some(record)) => {
                    assert!(Record::verify_checksum(record.bytes).is_ok());
                    assert!(record.start < record.end && record.end.0 % 8 == 0);
                    found.push((record.start, record.end, record.bytes.to_vec()));
                }
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}

fuzz_target!(|input: (u16, u16, bool, &[u8])| {
    let (page, piece, scan, bytes) = input;
    let at = Lsn(SEGMENT + u64::from(page) * 8192);
    let geometry = WalGeometry {
        major: PgMajor::V17,
        system_identifier: 1,
        segment_size: SegmentSize::new(SEGMENT).expect("a valid size"),
        timeline: TimelineId(1),
    };
    // The first page's header is right, so that what follows is looked at.
    let mut log = Vec::new();
    WalPageHeader::build(at, 0, &geometry).encode(&mut log);
    log.extend_from_slice(bytes);
    let whole = split(&log, at, log.len(), scan);
    assert_eq!(split(&log, at, usize::from(piece).max(1), scan), whole);
});
