//! Merging equal tuples into posting tuples.

use pg_page::btree::HAS_GARBAGE;

use super::tuple::{TupleAt, finish_formed, formed_len};
use super::{HIGH_KEY, Special, init};
use crate::items::Slot;
use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// Rebuilds the page tuple by tuple; each interval of the record becomes one tuple.
pub(super) fn dedup(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let count = Reader::new(redo.record.main, "deduplication").u16()?;
    let mut data = Reader::new(redo.block.data, "intervals");
    let mut intervals = data.u16s(usize::from(count) * 2)?.pairs().peekable();

    let mut old_bytes = *page.bytes;
    let old = PageMut::new(&mut old_bytes);
    let special = Special::read(&old)?;
    let cycle_id = old.u16_at(super::CYCLE_ID_AT)?;
    init(
        page,
        Special {
            flags: special.flags & !HAS_GARBAGE,
            ..special
        },
    )?;
    page.put_u16(super::CYCLE_ID_AT, cycle_id)?;

    let mut to = 1;
    if special.first_data() > HIGH_KEY {
        copy(page, &old, HIGH_KEY, to)?;
        to += 1;
    }
    let last = old.item_count();
    let mut from = special.first_data();
    while from <= last {
        if let Some((_, items)) = intervals.next_if(|(base, _)| *base == from) {
            let behind = from
                .checked_add(items)
                .filter(|behind| items > 0 && *behind <= last + 1);
            let behind = behind.ok_or(RedoFault::BadValue { what: "interval" })?;
            merge(page, &old, from..behind, to)?;
            from = behind;
        } else {
            copy(page, &old, from, to)?;
            from += 1;
        }
        to += 1;
    }
    match intervals.next() {
        None => Ok(()),
        Some((number, _)) => Err(RedoFault::NoItem {
            number,
            count: last,
        }),
    }
}

fn copy(page: &mut PageMut<'_>, old: &PageMut<'_>, from: u16, to: u16) -> Result<(), RedoFault> {
    let span = old.storage(from)?;
    let tuple = old
        .bytes
        .get(span.offset..span.offset + span.len)
        .unwrap_or_default();
    page.add_tuple(to, tuple, Slot::Shift)?;
    Ok(())
}

/// Adds one tuple with the key of the first of `numbers` and the heap TIDs of all of them.
fn merge(
    page: &mut PageMut<'_>,
    old: &PageMut<'_>,
    numbers: std::ops::Range<u16>,
    to: u16,
) -> Result<(), RedoFault> {
    let base = TupleAt::of(old, numbers.start)?;
    let mut count = 0;
    for number in numbers.clone() {
        count += TupleAt::of(old, number)?.count;
    }
    if count > usize::from(u16::MAX) / 16 {
        // The list's length has 12 bits.
        return Err(RedoFault::BadValue { what: "interval" });
    }
    let at = page.add_item(to, formed_len(base.key_len, count), Slot::Shift)?;
    let key = old
        .bytes
        .get(base.offset..base.offset + base.key_len)
        .unwrap_or_default();
    page.put_bytes(at, key)?;
    let single = old.array(base.tid_at(0))?;
    if count > 1 {
        let mut list = at + base.key_len;
        for number in numbers {
            let tids = old
                .bytes
                .get(TupleAt::of(old, number)?.tids())
                .unwrap_or_default();
            page.put_bytes(list, tids)?;
            list += tids.len();
        }
    }
    finish_formed(page, at, base.key_len, count, single)
}
