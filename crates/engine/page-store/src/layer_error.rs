//! Why something could not be read from a layer file, before it is known for which page.

use pg_types::PageKey;

use crate::error::{Corruption, DiskError, GetPageError, OpenError};

/// A layer file cannot be read or is damaged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    /// The bytes are wrong.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The bytes cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl LayerError {
    /// This as the failure of reading a page.
    pub(crate) fn of_page(self, key: PageKey) -> GetPageError {
        match self {
            LayerError::Corrupt(source) => GetPageError::Corrupt { key, source },
            LayerError::Disk(source) => GetPageError::Disk { key, source },
        }
    }
}

impl From<LayerError> for OpenError {
    fn from(error: LayerError) -> OpenError {
        match error {
            LayerError::Corrupt(source) => OpenError::Corrupt(source),
            LayerError::Disk(source) => OpenError::Disk(source),
        }
    }
}
