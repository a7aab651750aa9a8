//! The checksum of a page, bit for bit PostgreSQL's (`storage/checksum_impl.h`).
//!
//! The page is a table of 64 rows and 32 columns of little-endian words. Each column is hashed on
//! its own (FNV-1a with its high bits folded back in), which lets the compiler keep the columns in
//! vector registers; two rounds of zero mix the last row in; the columns are combined by XOR with
//! the block number and reduced to 1..=65535, so that a stored zero always means "none".

use pg_types::{BLCKSZ, BlockNumber};

use crate::Page;
use crate::page_header::{is_new, set_stored_checksum, stored_checksum};

const COLUMNS: usize = 32;
const ROW_BYTES: usize = COLUMNS * 4;
const PRIME: u32 = 16_777_619;

/// What each column's hash begins with.
const SEEDS: [u32; COLUMNS] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// The checksum that `page` must carry as block `block` of its fork.
///
/// The stored checksum does not enter it. PostgreSQL never computes one for a page that
/// [`is_new`]; such a page carries zero.
#[must_use]
pub fn checksum(page: &Page, block: BlockNumber) -> u16 {
    let (rows, _) = page.as_chunks::<ROW_BYTES>();
    let mut sums = SEEDS;
    let mut rows = rows.iter();
    if let Some(first) = rows.next() {
        let mut first = *first;
        // pd_checksum itself counts as zero.
        let [_, _, _, _, _, _, _, _, low, high, ..] = &mut first;
        *low = 0;
        *high = 0;
        mix_row(&mut sums, &first);
    }
    for row in rows {
        mix_row(&mut sums, row);
    }
    mix_row(&mut sums, &[0; ROW_BYTES]);
    mix_row(&mut sums, &[0; ROW_BYTES]);
    let folded = sums.iter().fold(block, |all, sum| all ^ sum);
    // At most 65535, because of the modulus.
    (folded % 65_535 + 1) as u16
}

#[inline(always)]
fn mix_row(sums: &mut [u32; COLUMNS], row: &[u8; ROW_BYTES]) {
    let (words, _) = row.as_chunks::<4>();
    for (sum, word) in sums.iter_mut().zip(words) {
        let mixed = *sum ^ u32::from_le_bytes(*word);
        *sum = mixed.wrapping_mul(PRIME) ^ (mixed >> 17);
    }
}

/// Stores the checksum in `page`; a new page keeps zero, as in PostgreSQL.
pub fn set_checksum(page: &mut Page, block: BlockNumber) {
    if !is_new(page) {
        let value = checksum(page, block);
        set_stored_checksum(page, value);
    }
}

/// Whether the stored checksum is right for `block`; a new page has none to be wrong.
#[must_use]
pub fn checksum_matches(page: &Page, block: BlockNumber) -> bool {
    is_new(page) || stored_checksum(page) == checksum(page, block)
}

const _: () = assert!(BLCKSZ.is_multiple_of(ROW_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_header::init;

    #[test]
    fn a_checksum_belongs_to_one_content_and_one_block() {
        let mut page = [0; BLCKSZ];
        init(&mut page, 0);
        page[5000] = 3;
        set_checksum(&mut page, 7);
        assert!(checksum_matches(&page, 7));
        assert!(!checksum_matches(&page, 8));
        for at in [0, 10, 4096, 8191] {
            page[at] ^= 0x10;
            assert!(
                !checksum_matches(&page, 7),
                "a flipped bit in byte {at} went unnoticed"
            );
            page[at] ^= 0x10;
        }
        assert_ne!(stored_checksum(&page), 0);
    }

    #[test]
    fn new_pages_have_no_checksum() {
        let mut page = [0; BLCKSZ];
        set_checksum(&mut page, 3);
        assert_eq!(page, [0; BLCKSZ]);
        assert!(checksum_matches(&page, 3));
    }
}
