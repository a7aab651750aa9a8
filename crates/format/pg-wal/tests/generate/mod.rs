//! Random records and logs for the property tests, written independently of the code under test.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "what cannot be built fails the test")]

use pg_types::{BLCKSZ, Lsn, PgMajor, SegmentSize, TimelineId};
use pg_wal::{PlacedRecord, RmgrId, WalGeometry, encode_record, place_record};
use proptest::prelude::*;

pub const SEGMENT: u64 = 1 << 20;

pub fn segment_size() -> SegmentSize {
    SegmentSize::new(SEGMENT).unwrap()
}

pub fn geometry(major: PgMajor) -> WalGeometry {
    WalGeometry {
        major,
        system_identifier: 0x1122_3344_5566_7788,
        segment_size: segment_size(),
        timeline: TimelineId(3),
    }
}

pub fn major() -> impl Strategy<Value = PgMajor> {
    prop::sample::select(PgMajor::ALL.to_vec())
}

/// A position where a record can end: every class of page and of offset in it.
pub fn record_end() -> impl Strategy<Value = Lsn> {
    let segment = prop::sample::select(vec![1u64, 2, 4095, 4096, 70_000]);
    let page = prop_oneof![Just(0u64), Just(1), Just(126), Just(127), 0..128u64];
    let offset = prop_oneof![
        // The page's start, right behind either header, and every way to straddle its end.
        prop::sample::select(vec![
            0u64, 24, 32, 40, 48, 8144, 8152, 8160, 8168, 8176, 8184
        ]),
        (5..1024u64).prop_map(|eighths| eighths * 8),
    ];
    (segment, page, offset).prop_map(|(segment, page, offset)| {
        let in_header = page == 0 && (1..40).contains(&offset);
        Lsn(segment * SEGMENT + page * 8192 + if in_header { 40 } else { offset })
    })
}

/// Main data lengths around everything that is a boundary, up to more than a segment.
pub fn main_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0..200usize,
        4 => 200..400usize,
        3 => 8000..8400usize,
        2 => 16_000..17_000usize,
        1 => Just(1 << 20),
        1 => Just((2 << 20) + 12_345),
    ]
}

pub struct Log {
    pub from: Lsn,
    pub bytes: Vec<u8>,
    pub records: Vec<(PlacedRecord, Vec<u8>)>,
}

/// Lays records with the given main data lengths one behind the other from `from` on.
pub fn lay(from: Lsn, lengths: &[usize], geometry: &WalGeometry) -> Log {
    let mut log = Log {
        from,
        bytes: Vec::new(),
        records: Vec::new(),
    };
    let (mut at, mut prev) = (from, Lsn(from.0 - 8));
    for (index, len) in lengths.iter().enumerate() {
        let main: Vec<u8> = (0..*len)
            .map(|byte| (byte * 7 + index + byte / 251) as u8)
            .collect();
        let record = encode_record(RmgrId::HEAP, 0x10, 700 + index as u32, prev, &main);
        let placed = place_record(at, &record, geometry);
        log.bytes.extend_from_slice(&placed.bytes);
        (at, prev) = (placed.end, placed.start);
        log.records.push((placed, record));
    }
    log
}

#[derive(Debug, Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub hole: Option<(u16, u16)>,
    /// 0 plain, 1 pglz, 2 lz4, 3 zstd.
    pub method: u8,
    pub apply: bool,
}

#[derive(Debug, Clone)]
pub struct Block {
    pub fork: u8,
    pub will_init: bool,
    pub image: Option<Image>,
    pub data: Vec<u8>,
    pub rel: [u32; 3],
    pub number: u32,
}

#[derive(Debug, Clone)]
pub struct Parts {
    pub rmid: u8,
    pub info: u8,
    pub xid: u32,
    pub prev: u64,
    pub blocks: Vec<(u8, Block)>,
    pub origin: Option<u16>,
    pub toplevel: Option<u32>,
    pub main: Vec<u8>,
}

fn image() -> impl Strategy<Value = Image> {
    let hole = prop::option::of((1..8000u16).prop_flat_map(|at| (Just(at), 1..=8192 - at)));
    (hole, 0..4u8, any::<bool>(), 1..2000usize, any::<u8>()).prop_map(
        |(hole, method, apply, compressed, fill)| {
            let len = if method == 0 {
                BLCKSZ - hole.map_or(0, |(_, len)| usize::from(len))
            } else {
                compressed
            };
            Image {
                bytes: vec![fill; len],
                hole,
                method,
                apply,
            }
        },
    )
}

fn block() -> impl Strategy<Value = Block> {
    let data = prop::collection::vec(any::<u8>(), 0..300);
    // Few relations, so that neighbours share theirs.
    let rel = prop::sample::select(vec![[1663, 5, 16384], [1663, 5, 2619], [1664, 0, 1262]]);
    (
        0..4u8,
        any::<bool>(),
        prop::option::of(image()),
        data,
        rel,
        any::<u32>(),
    )
        .prop_map(|(fork, will_init, image, data, rel, number)| Block {
            fork,
            will_init,
            image,
            data,
            rel,
            number,
        })
}

pub fn parts() -> impl Strategy<Value = Parts> {
    let blocks = prop::collection::btree_map(0..=32u8, block(), 0..7);
    let main = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 250..600)
    ];
    let header = (any::<u8>(), any::<u8>(), any::<u32>(), any::<u64>());
    (
        header,
        blocks,
        prop::option::of(any::<u16>()),
        prop::option::of(any::<u32>()),
        main,
    )
        .prop_map(
            |((rmid, info, xid, prev), blocks, origin, toplevel, main)| Parts {
                rmid,
                info,
                xid,
                prev,
                blocks: blocks.into_iter().collect(),
                origin,
                toplevel,
                main,
            },
        )
}

impl Parts {
    /// The record's bytes as `major` would write them; methods that 14 lacks become pglz.
    pub fn encode(&self, major: PgMajor) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend(self.xid.to_le_bytes());
        out.extend(self.prev.to_le_bytes());
        out.extend([self.info, self.rmid, 0, 0, 0, 0, 0, 0]);
        let mut payload = Vec::new();
        let mut previous = None;
        for (id, block) in &self.blocks {
            let same = previous == Some(block.rel);
            previous = Some(block.rel);
            let mut flags = block.fork;
            for (set, flag) in [
                (block.image.is_some(), 0x10),
                (!block.data.is_empty(), 0x20),
                (block.will_init, 0x40),
                (same, 0x80),
            ] {
                flags |= if set { flag } else { 0 };
            }
            out.extend([*id, flags]);
            out.extend((block.data.len() as u16).to_le_bytes());
            if let Some(image) = &block.image {
                out.extend((image.bytes.len() as u16).to_le_bytes());
                out.extend(image.hole.map_or(0, |(at, _)| at).to_le_bytes());
                let (apply, methods) = match major {
                    PgMajor::V14 => (4, [0, 2, 2, 2]),
                    _ => (2, [0, 4, 8, 16]),
                };
                let mut info = methods[usize::from(image.method)];
                info |= u8::from(image.hole.is_some());
                info |= if image.apply { apply } else { 0 };
                out.push(info);
                if let (Some((_, len)), true) = (image.hole, image.method != 0) {
                    out.extend(len.to_le_bytes());
                }
                payload.extend_from_slice(&image.bytes);
            }
            payload.extend_from_slice(&block.data);
            if !same {
                block
                    .rel
                    .iter()
                    .for_each(|field| out.extend(field.to_le_bytes()));
            }
            out.extend(block.number.to_le_bytes());
        }
        if let Some(origin) = self.origin {
            out.push(253);
            out.extend(origin.to_le_bytes());
        }
        if let Some(toplevel) = self.toplevel {
            out.push(252);
            out.extend(toplevel.to_le_bytes());
        }
        match self.main.len() {
            0 => {}
            len @ 1..=255 => out.extend([255, len as u8]),
            len => {
                out.push(254);
                out.extend((len as u32).to_le_bytes());
            }
        }
        out.extend(payload);
        out.extend_from_slice(&self.main);
        let len = out.len() as u32;
        out[..4].copy_from_slice(&len.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out[24..]), &out[..20]);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out
    }
}
