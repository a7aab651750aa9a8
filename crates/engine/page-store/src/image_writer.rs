//! Adding whole pages at one LSN: import, and background materialisation.

use std::sync::Arc;

use pg_types::{BLCKSZ, Lsn, PageKey};

use crate::error::{DiskError, ImageWriteError};
use crate::image_file::ImageFileWriter;
use crate::image_layer::{ImageLayer, Run, overlap};
use crate::layer_file::LayerName;
use crate::shared::Shared;

/// Writes pages as of one LSN to image layer files. Pages stream through: memory holds the index
/// only (a run of neighbouring pages costs 28 bytes, a stored page 4).
///
/// Nothing can be read, and nothing outlives the process, before [`ImageLayerWriter::finish`].
pub struct ImageLayerWriter {
    shared: Arc<Shared>,
    lsn: Lsn,
    current: Option<(LayerName, ImageFileWriter)>,
    done: Vec<(LayerName, Arc<ImageLayer>)>,
    /// Import makes `lsn` the oldest LSN that can be read.
    import: bool,
    pages: u64,
}

impl ImageLayerWriter {
    pub(crate) fn new(shared: Arc<Shared>, lsn: Lsn, import: bool) -> ImageLayerWriter {
        ImageLayerWriter {
            shared,
            lsn,
            current: None,
            done: Vec::new(),
            import,
            pages: 0,
        }
    }

    /// LSN of the pages.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Pages added.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds a page. Pages may come in any order, each once; reads are fastest when neighbours were
    /// added one after another.
    ///
    /// # Errors
    /// [`ImageWriteError`] when the disk refuses; the store then takes nothing more. A page that comes
    /// twice shows here or in [`ImageLayerWriter::finish`].
    pub fn add(&mut self, key: PageKey, page: &[u8; BLCKSZ]) -> Result<(), ImageWriteError> {
        if let Some(error) = self.shared.poison.get() {
            return Err(ImageWriteError::Poisoned(error));
        }
        let result = self.add_to_file(key, page);
        result.map_err(|error| ImageWriteError::Disk(self.shared.fail(error)))?;
        self.pages += 1;
        if self.is_full() {
            self.finish_file()?;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        let limit = self.shared.options.image_layer_bytes;
        self.current
            .as_ref()
            .is_some_and(|(_, file)| file.length() >= limit)
    }

    fn add_to_file(&mut self, key: PageKey, page: &[u8; BLCKSZ]) -> Result<(), DiskError> {
        if let Some((_, file)) = &mut self.current {
            return file.add(key, page);
        }
        let seq = self.shared.take_seq();
        let name = LayerName {
            start: self.lsn,
            end: self.lsn,
            seq,
            image: true,
        };
        let Shared {
            disk,
            dir,
            identity,
            ..
        } = &*self.shared;
        let mut file = ImageFileWriter::create(disk, dir, name, identity.system_identifier)?;
        file.add(key, page)?;
        self.current = Some((name, file));
        Ok(())
    }

    fn finish_file(&mut self) -> Result<(), ImageWriteError> {
        let Some((name, mut file)) = self.current.take() else {
            return Ok(());
        };
        if let Some(key) = file.sort() {
            return Err(ImageWriteError::Duplicate { key, lsn: self.lsn });
        }
        let path = file
            .finish()
            .map_err(|error| ImageWriteError::Disk(self.shared.fail(error)))?;
        let layer = ImageLayer::open(&self.shared.disk, &path)?;
        self.done.push((name, Arc::new(layer)));
        Ok(())
    }

    /// Makes everything added durable and readable. Returns the number of files written.
    ///
    /// # Errors
    /// [`ImageWriteError::Duplicate`] when a page came twice; otherwise a failure
    /// of the disk, after which the store takes nothing more.
    pub fn finish(mut self) -> Result<usize, ImageWriteError> {
        self.finish_file()?;
        self.check_duplicates()?;
        let files = self.done.len();
        let oldest = self.import.then_some(self.lsn);
        let done = std::mem::take(&mut self.done);
        self.shared
            .add_images(done, oldest)
            .map_err(|error| ImageWriteError::Disk(self.shared.fail(error)))?;
        Ok(files)
    }

    fn check_duplicates(&self) -> Result<(), ImageWriteError> {
        let mut runs: Vec<Run> = self
            .done
            .iter()
            .flat_map(|(_, layer)| layer.runs().iter().copied())
            .collect();
        runs.sort_unstable_by_key(|run| run.key);
        match overlap(&runs) {
            Some(key) => Err(ImageWriteError::Duplicate { key, lsn: self.lsn }),
            None => Ok(()),
        }
    }
}
