//! The kinds of values a version can be.

/// What a version of a key is. The numbers are part of the delta layer format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// A mini-record that changes the page before it.
    Mini = 1,
    /// A mini-record that builds the page from nothing.
    MiniInit = 2,
    /// The whole page.
    Image = 3,
    /// The whole page, all zeros; no payload.
    ZeroImage = 4,
    /// A metadata value.
    MetaValue = 5,
    /// The metadata key ceased to exist; no payload.
    MetaTombstone = 6,
}

impl EntryKind {
    /// The kind with this number.
    pub(crate) fn from_number(number: u8) -> Option<EntryKind> {
        [
            EntryKind::Mini,
            EntryKind::MiniInit,
            EntryKind::Image,
            EntryKind::ZeroImage,
            EntryKind::MetaValue,
            EntryKind::MetaTombstone,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }

    /// Whether a page can be rebuilt from this entry without any before it.
    pub(crate) const fn is_base(self) -> bool {
        matches!(
            self,
            EntryKind::MiniInit | EntryKind::Image | EntryKind::ZeroImage
        )
    }

    /// Whether this is a version of a page (otherwise of metadata).
    pub(crate) const fn is_page(self) -> bool {
        !matches!(self, EntryKind::MetaValue | EntryKind::MetaTombstone)
    }
}
