//! Finding and spoiling bytes of WAL segment files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Segment files of a directory, in the order of their names: timeline, then position.
///
/// # Errors
/// When the directory cannot be read.
pub fn segments(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The newest segment that has WAL in it, and where its last byte that is not zero lies.
///
/// # Errors
/// When there is none.
pub fn last_written(directory: &Path) -> Result<(PathBuf, u64)> {
    for path in segments(directory)?.into_iter().rev() {
        let bytes = fs::read(&path)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok((path, at as u64));
        }
    }
    anyhow::bail!("no segment in {} has WAL in it", directory.display())
}

/// A byte that was turned over.
#[derive(Debug)]
pub struct FlippedByte {
    path: PathBuf,
    at: u64,
}

/// Inverts the byte at `at`.
///
/// # Errors
/// When the file cannot be read or written there.
pub fn flip(path: &Path, at: u64) -> Result<FlippedByte> {
    let flipped = FlippedByte {
        path: path.to_owned(),
        at,
    };
    flipped.invert()?;
    Ok(flipped)
}

impl FlippedByte {
    /// Puts the byte back.
    ///
    /// # Errors
    /// When the file cannot be read or written there.
    pub fn restore(self) -> Result<()> {
        self.invert()
    }

    fn invert(&self) -> Result<()> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .with_context(|| self.path.display().to_string())?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.at)?;
        file.write_all_at(&byte.map(|byte| !byte), self.at)?;
        Ok(())
    }
}

/// Writes `bytes` at `at`.
///
/// # Errors
/// When the file cannot be written there.
pub fn overwrite(path: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(file.write_all_at(bytes, at)?)
}
