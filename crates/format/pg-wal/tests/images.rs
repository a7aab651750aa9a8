//! Images restore to the page that was saved, whatever compressed them.

use pg_types::BLCKSZ;
use pg_wal::{BlockImage, Compression, ImageError};
use proptest::prelude::*;

/// A greedy compressor for PostgreSQL's LZ, so that decompression has something to undo.
fn compress_pglz(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let control = out.len();
        out.push(0);
        for bit in 0..8 {
            if at == bytes.len() {
                break;
            }
            let best = (1..=at.min(4095))
                .step_by(if at > 600 { 7 } else { 1 })
                .map(|distance| {
                    let same = |len: &usize| {
                        at + len < bytes.len() && bytes[at + len] == bytes[at + len - distance]
                    };
                    ((0..273).take_while(same).count(), distance)
                })
                .max()
                .unwrap_or((0, 0));
            match best {
                (len @ 3.., distance) => {
                    out[control] |= 1 << bit;
                    let nibble = (len - 3).min(15);
                    out.push((distance >> 4 & 0xF0) as u8 | nibble as u8);
                    out.push(distance as u8);
                    if len >= 18 {
                        out.push((len - 18) as u8);
                    }
                    at += len;
                }
                _ => {
                    out.push(bytes[at]);
                    at += 1;
                }
            }
        }
    }
    out
}

fn restore(
    bytes: &[u8],
    hole: (u16, u16),
    compression: Option<Compression>,
) -> Result<[u8; BLCKSZ], ImageError> {
    let mut page = [0xAA; BLCKSZ];
    let image = BlockImage {
        bytes,
        hole_offset: hole.0,
        hole_length: hole.1,
        compression,
        apply: true,
    };
    image.restore(&mut page).map(|()| page)
}

/// A page of runs and noise.
fn page() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<u8>(), 1..700usize, any::<bool>(), 1..9usize);
    prop::collection::vec(run, 1..60).prop_map(|runs| {
        let runs = runs.into_iter().flat_map(|(byte, len, noise, period)| {
            (0..len).map(move |at| {
                if noise {
                    (at * at * 31 + at / 3) as u8 ^ byte
                } else {
                    byte.wrapping_add((at % period) as u8)
                }
            })
        });
        runs.chain(std::iter::repeat(0)).take(BLCKSZ).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_method_restores_the_page(
        mut page in page(),
        hole in prop::option::of((24..8000u16).prop_flat_map(|at| (Just(at), 1..=8192 - at))),
    ) {
        let (offset, length) = hole.unwrap_or((0, 0));
        let (from, to) = (usize::from(offset), usize::from(offset + length));
        page[from..to].fill(0);
        let saved = [&page[..from], &page[to..]].concat();
        let hole = (offset, length);
        let plain = restore(&saved, hole, None).unwrap();
        prop_assert_eq!(&plain[..], &page);
        let compressed = [
            (Compression::Pglz, compress_pglz(&saved)),
            (Compression::Lz4, lz4_flex::block::compress(&saved)),
            (Compression::Zstd, zstd::bulk::compress(&saved, 3).unwrap()),
        ];
        for (method, bytes) in compressed {
            let restored = restore(&bytes, hole, Some(method)).unwrap();
            prop_assert_eq!(&restored[..], &page, "{:?}", method);
            // A byte less is damage, and is called so.
            let cut = restore(&bytes[..bytes.len() - 1], hole, Some(method));
            prop_assert!(cut.is_err(), "{:?}", method);
        }
    }
}

#[test]
fn a_match_may_overlap_itself_and_overshoot_the_page() {
    // One literal, then a match of distance 1 and length 18 + 255, again and again.
    let mut bytes = vec![0b1111_1110, b'z'];
    for item in 0..31 {
        if item > 0 && (item + 1) % 8 == 0 {
            bytes.push(0xFF);
        }
        bytes.extend([0x0F, 1, 255]);
    }
    // 1 + 30 * 273 = 8191 bytes: the last match is cut to the one byte left.
    assert_eq!(
        restore(&bytes, (0, 0), Some(Compression::Pglz)).unwrap(),
        [b'z'; BLCKSZ]
    );
    bytes.push(0);
    let trailing = restore(&bytes, (0, 0), Some(Compression::Pglz));
    assert!(
        matches!(trailing, Err(ImageError::Corrupt { .. })),
        "{trailing:?}"
    );
}

#[test]
fn damage_is_told_apart() {
    let before_page = [0b10, b'a', 0x00, 2];
    for bytes in [
        &before_page[..],
        &[0b10, b'a', 0x00, 0],
        &[0b10, b'a', 0x0F, 1],
        &[],
    ] {
        let error = restore(bytes, (0, 0), Some(Compression::Pglz)).unwrap_err();
        assert!(
            matches!(error, ImageError::Corrupt { expected: 8192, .. }),
            "{error}"
        );
    }
    let short = restore(&[0; 100], (50, 100), None).unwrap_err();
    assert_eq!(
        short,
        ImageError::BadLength {
            len: 100,
            hole_offset: 50,
            hole_length: 100
        }
    );
    let beyond = restore(&[0; 92], (8192, 8100), None).unwrap_err();
    assert_eq!(
        beyond,
        ImageError::BadLength {
            len: 92,
            hole_offset: 8192,
            hole_length: 8100
        }
    );
    // Valid, but of another length than the page.
    let other = zstd::bulk::compress(&[7; 8000], 3).unwrap();
    assert!(restore(&other, (0, 0), Some(Compression::Zstd)).is_err());
}
