//! Records laid into the log anywhere come back whole and once, however the bytes arrive.

mod generate;

use generate::{SEGMENT, geometry, lay, main_len, major, record_end, segment_size};
use pg_types::{Lsn, PgMajor, TimelineId};
use pg_wal::page_header::{FIRST_IS_OVERWRITE_CONTRECORD, page_start};
use pg_wal::records::xlog;
use pg_wal::{
    EndReason, PageHeaderError, Record, RmgrId, StreamError, WalGeometry, WalPageHeader, WalStream,
    encode_record, place_record,
};
use proptest::prelude::*;

type Found = (Lsn, Lsn, Vec<u8>);

fn drain(stream: &mut WalStream, found: &mut Vec<Found>) -> Result<(), StreamError> {
    while let Some(record) = stream.next_record()? {
        found.push((record.start, record.end, record.bytes.to_vec()));
    }
    Ok(())
}

fn expected(log: &generate::Log) -> Vec<Found> {
    log.records
        .iter()
        .map(|(placed, record)| (placed.start, placed.end, record.clone()))
        .collect()
}

/// A log of one page-crossing record behind a short one, in the middle of a segment.
fn crossing_log(geometry: &WalGeometry) -> generate::Log {
    lay(
        Lsn(3 * SEGMENT + 5 * 8192 + 4000),
        &[100, 6000, 50],
        geometry,
    )
}

#[expect(clippy::panic, reason = "anything else fails the test")]
fn end_reason(result: Result<(), StreamError>) -> (Lsn, EndReason) {
    match result {
        Err(StreamError::EndOfWal { at, reason }) => (at, reason),
        other => panic!("expected the end of WAL, got {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn records_come_back_identical(
        from in record_end(),
        lengths in prop::collection::vec(main_len(), 1..6),
        major in major(),
        pieces in prop::collection::vec((1..20_000usize, 0..5000u64), 1..12),
    ) {
        let log = lay(from, &lengths, &geometry(major));
        let mut stream = WalStream::new(from, major, segment_size());
        let mut found = Vec::new();
        let end = from.advance(log.bytes.len() as u64);
        let mut pieces = pieces.into_iter().cycle();
        while stream.fed() < end {
            let (len, again) = pieces.next().unwrap();
            // Some of what was pushed before is pushed again.
            let at = Lsn((stream.fed().0 - again.min(stream.fed().since(from))).max(from.0));
            let start = at.since(from) as usize;
            let stop = (start + again as usize + len).min(log.bytes.len());
            stream.push(at, &log.bytes[start..stop]).unwrap();
            drain(&mut stream, &mut found).unwrap();
            prop_assert!(stream.record_end() <= stream.fed().align8());
        }
        prop_assert_eq!(&found, &expected(&log));
        let last = &log.records.last().unwrap().0;
        prop_assert_eq!((stream.last_record(), stream.record_end()), (last.start, last.end));
        for (start, _, bytes) in &found {
            prop_assert!(Record::verify_checksum(bytes).is_ok());
            prop_assert_eq!(start.0 % 8, 0);
        }
    }

    #[test]
    fn a_scan_begins_with_the_first_record_of_its_page(
        lengths in prop::collection::vec(main_len(), 1..6),
        major in major(),
        page in 0..400u64,
    ) {
        let from = Lsn(2 * SEGMENT);
        let log = lay(from, &lengths, &geometry(major));
        let at = Lsn(from.0 + page * 8192 % (log.bytes.len() as u64)).0 / 8192 * 8192;
        let mut stream = WalStream::scan_from_page(Lsn(at + 17), major, segment_size());
        stream.push(Lsn(at), &log.bytes[(at - from.0) as usize..]).unwrap();
        let mut found = Vec::new();
        drain(&mut stream, &mut found).unwrap();
        let mut wanted = expected(&log);
        wanted.retain(|(start, ..)| start.0 >= at);
        prop_assert_eq!(found, wanted);
    }

    /// One flipped bit ends the stream, or lies where it does not matter; it never gives another
    /// record.
    #[test]
    fn a_flipped_bit_never_makes_a_record(
        from in record_end(),
        lengths in prop::collection::vec(0..9000usize, 1..6),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut log = lay(from, &lengths, &geometry(PgMajor::V16));
        let bit = bit.index(log.bytes.len() * 8);
        log.bytes[bit / 8] ^= 1 << (bit % 8);
        let mut stream = WalStream::new(from, PgMajor::V16, segment_size());
        stream.push(from, &log.bytes).unwrap();
        let mut found = Vec::new();
        let result = drain(&mut stream, &mut found);
        prop_assert!(expected(&log).starts_with(&found));
        if found.len() < log.records.len() && result.is_err() {
            prop_assert_eq!(stream.next_record().err(), result.err());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        at in any::<u64>(),
        header in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..20_000),
        major in major(),
    ) {
        // Half of the cases get past the page header.
        let at = Lsn(if header { at / 2 / 8192 * 8192 } else { at });
        let mut log = Vec::new();
        if header {
            WalPageHeader::build(at, 0, &geometry(major)).encode(&mut log);
        }
        log.extend(bytes);
        for mut stream in [
            WalStream::new(at, major, segment_size()),
            WalStream::scan_from_page(at, major, segment_size()),
        ] {
            let from = stream.fed();
            if stream.push(from, &log).is_ok() {
                let mut found = Vec::new();
                let _ = drain(&mut stream, &mut found);
                prop_assert!(found.is_empty(), "random bytes have no valid checksum");
            }
        }
    }
}

#[test]
fn a_gap_is_an_error_and_takes_nothing() {
    let log = crossing_log(&geometry(PgMajor::V15));
    let mut stream = WalStream::new(log.from, PgMajor::V15, segment_size());
    stream.push(log.from, &log.bytes[..10]).unwrap();
    let at = log.from.advance(11);
    let gap = StreamError::Gap {
        fed: log.from.advance(10),
        at,
    };
    assert_eq!(stream.push(at, &log.bytes[11..]), Err(gap));
    stream.push(log.from, &log.bytes).unwrap();
    let mut found = Vec::new();
    drain(&mut stream, &mut found).unwrap();
    assert_eq!(found, expected(&log));
}

#[test]
fn a_segment_switch_skips_to_the_next_segment() {
    let geometry = geometry(PgMajor::V17);
    // In the midst of a segment, exactly at its end, and crossing into its last page.
    for offset in [100 * 8192 + 400, SEGMENT - 24, SEGMENT - 8192 - 8] {
        let from = Lsn(7 * SEGMENT + offset);
        let switch = encode_record(RmgrId::XLOG, xlog::SWITCH, 0, Lsn(8), &[]);
        let placed = place_record(from, &switch, &geometry);
        let next_segment = Lsn(8 * SEGMENT);
        let after = encode_record(RmgrId::XLOG, xlog::NOOP, 0, placed.start, &[]);
        let after_placed = place_record(next_segment, &after, &geometry);

        let mut bytes = placed.bytes.clone();
        // Whatever fills the rest is not looked at.
        bytes.resize(next_segment.since(from) as usize, 0x55);
        bytes.extend_from_slice(&after_placed.bytes);
        let mut stream = WalStream::new(from, PgMajor::V17, segment_size());
        let mut found = Vec::new();
        for (index, piece) in bytes.chunks(333).enumerate() {
            stream
                .push(from.advance(index as u64 * 333), piece)
                .unwrap();
            drain(&mut stream, &mut found).unwrap();
        }
        let wanted = vec![
            (placed.start, next_segment, switch),
            (Lsn(8 * SEGMENT + 40), after_placed.end, after),
        ];
        assert_eq!(found, wanted, "offset {offset}");
    }
}

#[test]
fn an_overwritten_record_is_dropped() {
    let geometry = geometry(PgMajor::V15);
    let log = crossing_log(&geometry);
    let (whole, broken) = (&log.records[0].0, &log.records[1].0);
    // The page on which the record goes on is written anew after a crash.
    let page = page_start(broken.start).advance(8192);
    let mut main = broken.start.0.to_le_bytes().to_vec();
    main.extend([0; 8]);
    let record = encode_record(
        RmgrId::XLOG,
        xlog::OVERWRITE_CONTRECORD,
        0,
        whole.start,
        &main,
    );
    let mut placed = place_record(page, &record, &geometry);
    placed.bytes[2] |= FIRST_IS_OVERWRITE_CONTRECORD as u8;

    let mut bytes = log.bytes[..page.since(log.from) as usize].to_vec();
    bytes.extend_from_slice(&placed.bytes);
    for piece in [1, 100, bytes.len()] {
        let mut stream = WalStream::new(log.from, PgMajor::V15, segment_size());
        let mut found = Vec::new();
        for (index, part) in bytes.chunks(piece).enumerate() {
            stream
                .push(log.from.advance((index * piece) as u64), part)
                .unwrap();
            drain(&mut stream, &mut found).unwrap();
        }
        let wanted = vec![
            (whole.start, whole.end, log.records[0].1.clone()),
            (placed.start, placed.end, record.clone()),
        ];
        assert_eq!(found, wanted);
    }
    let decoded = Record::decode(&record, PgMajor::V15).unwrap();
    assert_eq!(
        xlog::XlogRecord::decode(&decoded),
        Ok(xlog::XlogRecord::OverwriteContrecord {
            overwritten: broken.start,
            time: 0
        })
    );
}

#[test]
fn a_timeline_switch_drops_what_was_not_whole() {
    let old = geometry(PgMajor::V14);
    let new = WalGeometry {
        timeline: TimelineId(9),
        ..old
    };
    // The last record ends at a page boundary, behind a header, or in the midst of a page.
    for end in [
        Lsn(4 * SEGMENT),
        Lsn(4 * SEGMENT + 8192),
        Lsn(4 * SEGMENT + 8192 * 3 + 800),
    ] {
        let from = Lsn(end.0 - 200);
        let log = lay(from, &[200 - 24 - 2, 9000], &old);
        let fork = &log.records[0].0;
        assert_eq!(fork.end, end);
        let mut stream = WalStream::new(from, PgMajor::V14, segment_size());
        stream
            .push(from, &log.bytes[..log.bytes.len() - 3000])
            .unwrap();
        let mut found = Vec::new();
        drain(&mut stream, &mut found).unwrap();
        assert_eq!(found.len(), 1);

        let next = encode_record(RmgrId::XLOG, xlog::NOOP, 0, fork.start, &[0; 9000]);
        let placed = place_record(end, &next, &new);
        let elsewhere = stream.switch_timeline(end.advance(48), TimelineId(9));
        assert!(
            matches!(elsewhere, Err(StreamError::SwitchElsewhere { .. })),
            "{elsewhere:?}"
        );
        // Behind the page header is the same place.
        stream.switch_timeline(placed.start, TimelineId(9)).unwrap();
        assert_eq!(stream.fed(), end);
        stream.push(placed.from, &placed.bytes).unwrap();
        drain(&mut stream, &mut found).unwrap();
        assert_eq!(found[1..], [(placed.start, placed.end, next)]);
        assert_eq!(stream.timeline(), TimelineId(9));

        // What the old timeline still sends is refused.
        let late = encode_record(RmgrId::XLOG, xlog::NOOP, 0, placed.start, &[0; 9000]);
        let late = place_record(placed.end, &late, &old);
        stream.push(late.from, &late.bytes).unwrap();
        let (_, reason) = end_reason(drain(&mut stream, &mut found));
        let fell = PageHeaderError::TimelineFell {
            found: TimelineId(3),
            before: TimelineId(9),
        };
        assert_eq!(reason, EndReason::Page(fell));
    }
}

#[test]
fn the_end_of_the_log_is_found_and_can_be_written_over() {
    let geometry = geometry(PgMajor::V18);
    let log = crossing_log(&geometry);
    let (first, second) = (&log.records[0].0, &log.records[1].0);
    let page = page_start(second.start).advance(8192);
    let in_page = page.since(log.from) as usize;
    let in_second = second.start.since(log.from) as usize;
    let change = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = log.bytes.clone();
        edit(&mut bytes);
        let mut stream = WalStream::new(log.from, PgMajor::V18, segment_size());
        stream.push(log.from, &bytes).unwrap();
        let mut found = Vec::new();
        let (at, reason) = end_reason(drain(&mut stream, &mut found));
        assert_eq!((found.len(), stream.record_end()), (1, first.end));
        // The log goes on from there.
        stream
            .switch_timeline(first.end, stream.timeline())
            .unwrap();
        stream.push(log.from, &log.bytes).unwrap();
        drain(&mut stream, &mut found).unwrap();
        assert_eq!(found, expected(&log));
        (at, reason)
    };
    let zeros = change(&|bytes| bytes[in_second..].fill(0));
    assert_eq!(zeros, (second.start, EndReason::ZeroLength));
    let short = change(&|bytes| bytes[in_second..in_second + 4].copy_from_slice(&[23, 0, 0, 0]));
    assert_eq!(
        short,
        (second.start, EndReason::ImpossibleLength { len: 23 })
    );
    let prev = change(&|bytes| bytes[in_second + 8] ^= 8);
    let found = Lsn(first.start.0 ^ 8);
    let expected_prev = EndReason::PrevMismatch {
        expected: first.start,
        found,
    };
    assert_eq!(prev, (second.start, expected_prev));
    let crc = change(&|bytes| bytes[in_page + 30] ^= 1);
    assert_eq!(crc, (second.start, EndReason::BadChecksum));
    let stale = change(&|bytes| bytes[in_page + 11] ^= 1);
    let address = PageHeaderError::Address {
        found: Lsn(page.0 ^ 1 << 24),
    };
    assert_eq!(stale, (page, EndReason::Page(address)));
    let magic = change(&|bytes| bytes[in_page] ^= 1);
    let error = PageHeaderError::Magic {
        found: 0xD119,
        expected: 0xD118,
    };
    assert_eq!(magic, (page, EndReason::Page(error)));
    let flag = change(&|bytes| bytes[in_page + 2] &= !1);
    assert_eq!(
        flag,
        (
            page,
            EndReason::NoContinuation {
                record: second.start
            }
        )
    );
    let (at, reason) = change(&|bytes| bytes[in_page + 16] ^= 4);
    assert!(
        at == page && matches!(reason, EndReason::RemainingLength { .. }),
        "{at} {reason}"
    );
}

#[test]
fn a_continuation_of_nothing_ends_a_stream() {
    let log = lay(Lsn(2 * SEGMENT), &[9000], &geometry(PgMajor::V16));
    let page = Lsn(2 * SEGMENT + 8192);
    let mut stream = WalStream::new(page, PgMajor::V16, segment_size());
    stream.push(page, &log.bytes[8192..]).unwrap();
    let reason = end_reason(drain(&mut stream, &mut Vec::new()));
    assert_eq!(reason, (page, EndReason::UnexpectedContinuation));
}

#[test]
fn a_place_within_a_header_or_between_records_is_made_good() {
    let geometry = geometry(PgMajor::V17);
    let record = encode_record(RmgrId::XLOG, xlog::NOOP, 0, Lsn(8), &[]);
    let page = Lsn(5 * SEGMENT + 8192);
    let whole = place_record(page, &record, &geometry);
    assert_eq!(
        (whole.start, whole.end),
        (page.advance(24), page.advance(48))
    );
    // The rest of the header is written, and no byte before the place.
    let inside = place_record(page.advance(8), &record, &geometry);
    assert_eq!(inside.bytes, whole.bytes[8..]);
    assert_eq!(
        (inside.from, inside.start, inside.end),
        (page.advance(8), whole.start, whole.end)
    );
    // Zeros lead to the next multiple of 8, which may be the next page.
    let between = place_record(page.advance(8192 - 3), &record, &geometry);
    assert_eq!(between.bytes[..3], [0; 3]);
    assert_eq!(
        between.bytes[3..],
        place_record(page.advance(8192), &record, &geometry).bytes
    );
    // A segment begins with a long header.
    assert_eq!(
        place_record(Lsn(6 * SEGMENT), &record, &geometry).start,
        Lsn(6 * SEGMENT + 40)
    );
}

#[test]
fn the_buffer_of_a_long_record_serves_the_next_ones() {
    let log = lay(
        Lsn(2 * SEGMENT),
        &[9 << 20, 9000, 10],
        &geometry(PgMajor::V15),
    );
    let mut stream = WalStream::new(log.from, PgMajor::V15, segment_size());
    let mut found = Vec::new();
    for (index, piece) in log.bytes.chunks(1 << 17).enumerate() {
        stream
            .push(log.from.advance((index << 17) as u64), piece)
            .unwrap();
        drain(&mut stream, &mut found).unwrap();
    }
    assert_eq!(found, expected(&log));
}

#[test]
fn the_back_link_of_a_header_across_two_pages_is_checked() {
    let geometry = geometry(PgMajor::V16);
    // The first record ends so near the page's end that the second's header does not fit.
    for room in [8u64, 16] {
        let end = Lsn(3 * SEGMENT + 4 * 8192 - room);
        let log = lay(Lsn(end.0 - 128), &[128 - 24 - 2], &geometry);
        let first = &log.records[0].0;
        assert_eq!(first.end, end);
        let wrong = Lsn(first.start.0 - 8);
        let second = encode_record(RmgrId::XLOG, xlog::NOOP, 0, wrong, b"valid checksum");
        let placed = place_record(end, &second, &geometry);
        assert_eq!(placed.start, end);
        let mut stream = WalStream::new(log.from, PgMajor::V16, segment_size());
        stream.push(log.from, &log.bytes).unwrap();
        stream.push(end, &placed.bytes).unwrap();
        let (at, reason) = end_reason(drain(&mut stream, &mut Vec::new()));
        let expected = EndReason::PrevMismatch {
            expected: first.start,
            found: wrong,
        };
        assert_eq!((at, reason), (end, expected));
    }
}
