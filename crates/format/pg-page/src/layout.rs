//! Fields at fixed offsets of fixed-size structures.
//!
//! The bounds are checked when the program is compiled, so reading and writing cannot fail.

/// The `N` bytes at `OFFSET`.
#[allow(
    clippy::indexing_slicing,
    reason = "the range is checked when compiled"
)]
pub(crate) fn field<const OFFSET: usize, const N: usize, const LEN: usize>(
    bytes: &[u8; LEN],
) -> [u8; N] {
    const { assert!(OFFSET + N <= LEN, "field lies outside of the structure") };
    let mut value = [0; N];
    value.copy_from_slice(&bytes[OFFSET..OFFSET + N]);
    value
}

/// Replaces the `N` bytes at `OFFSET`.
#[allow(
    clippy::indexing_slicing,
    reason = "the range is checked when compiled"
)]
pub(crate) fn set_field<const OFFSET: usize, const N: usize, const LEN: usize>(
    bytes: &mut [u8; LEN],
    value: [u8; N],
) {
    const { assert!(OFFSET + N <= LEN, "field lies outside of the structure") };
    bytes[OFFSET..OFFSET + N].copy_from_slice(&value);
}

/// The little-endian `u16` at `offset`, if it is inside.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The little-endian `u32` at `offset`, if it is inside.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The little-endian `u64` at `offset`, if it is inside.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}
