//! Every operation on the store's directory goes through here.
//!
//! One place, so that tests can fail, shorten or observe each of them: crash consistency is an
//! ordering of writes, fsyncs and renames, and an ordering that cannot be observed is not tested.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DiskError;

/// Bytes collected before a file is written to.
const WRITE_BUFFER: usize = 1 << 20;

/// An operation on the store's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOperation<'a> {
    /// Creating (or emptying) a file.
    Create {
        /// The file.
        path: &'a Path,
    },
    /// Appending to a file.
    Write {
        /// The file.
        path: &'a Path,
        /// Bytes to append.
        bytes: usize,
    },
    /// `fsync` of a file.
    Sync {
        /// The file.
        path: &'a Path,
    },
    /// Renaming a file over another.
    Rename {
        /// Its name.
        from: &'a Path,
        /// Its new name.
        to: &'a Path,
    },
    /// `fsync` of a directory.
    SyncDirectory {
        /// The directory.
        path: &'a Path,
    },
    /// Removing a file.
    Remove {
        /// The file.
        path: &'a Path,
    },
    /// Reading from a file.
    Read {
        /// The file.
        path: &'a Path,
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: usize,
    },
}

/// What shall happen to an operation.
#[derive(Debug)]
pub enum Fault {
    /// It is carried out.
    None,
    /// It fails.
    Fail(io::Error),
    /// A write is carried out for its first bytes only and then fails.
    Short {
        /// Bytes that do get written.
        bytes: usize,
        /// The failure.
        error: io::Error,
    },
}

/// Decides about and observes the store's operations; for tests.
pub trait DiskFaults: Send + Sync + std::fmt::Debug {
    /// Called before each operation.
    fn before(&self, operation: &DiskOperation<'_>) -> Fault;
    /// Called after each operation that succeeded.
    fn after(&self, operation: &DiskOperation<'_>);
}

/// Access to the store's directory.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    faults: Option<Arc<dyn DiskFaults>>,
}

impl Disk {
    pub(crate) fn new(faults: Option<Arc<dyn DiskFaults>>) -> Disk {
        Disk { faults }
    }

    fn run<T>(
        &self,
        operation: DiskOperation<'_>,
        action: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(faults) = &self.faults else {
            return action();
        };
        match faults.before(&operation) {
            Fault::None => {}
            Fault::Fail(error) | Fault::Short { error, .. } => return Err(error),
        }
        let result = action()?;
        faults.after(&operation);
        Ok(result)
    }

    /// Creates a file for appending; an existing one is emptied.
    pub(crate) fn create(&self, path: &Path) -> Result<AppendFile, DiskError> {
        let file = self
            .run(DiskOperation::Create { path }, || File::create(path))
            .map_err(|source| DiskError::new("create", path, source))?;
        Ok(AppendFile {
            disk: self.clone(),
            path: path.to_owned(),
            file,
            buffer: Vec::with_capacity(WRITE_BUFFER),
            length: 0,
        })
    }

    /// Opens a file for reading.
    pub(crate) fn open(&self, path: &Path) -> Result<ReadFile, DiskError> {
        let opened = File::open(path).and_then(|file| {
            let length = file.metadata()?.len();
            Ok((file, length))
        });
        let (file, length) = opened.map_err(|source| DiskError::new("open", path, source))?;
        Ok(ReadFile {
            disk: self.clone(),
            path: path.to_owned(),
            file,
            length,
        })
    }

    /// Renames a file, replacing any that has the new name.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        self.run(DiskOperation::Rename { from, to }, || fs::rename(from, to))
            .map_err(|source| DiskError::new("rename", from, source))
    }

    /// Makes renames and removals in a directory durable.
    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), DiskError> {
        self.run(DiskOperation::SyncDirectory { path }, || {
            File::open(path)?.sync_all()
        })
        .map_err(|source| DiskError::new("fsync", path, source))
    }

    /// Removes a file.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), DiskError> {
        self.run(DiskOperation::Remove { path }, || fs::remove_file(path))
            .map_err(|source| DiskError::new("remove", path, source))
    }

    /// Names in a directory; names that are not UTF-8 cannot be the store's and are left out.
    pub(crate) fn list(&self, path: &Path) -> Result<Vec<String>, DiskError> {
        let names = fs::read_dir(path).and_then(|entries| {
            entries
                .filter_map(|entry| {
                    entry
                        .map(|entry| entry.file_name().into_string().ok())
                        .transpose()
                })
                .collect()
        });
        names.map_err(|source| DiskError::new("list", path, source))
    }

    /// Takes the directory's lock, held until the file is dropped; `None` when another process has it.
    pub(crate) fn lock(&self, path: &Path) -> Result<Option<File>, DiskError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|source| DiskError::new("create", path, source))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(source)) => Err(DiskError::new("lock", path, source)),
        }
    }
}

/// A file being written from its beginning, with a buffer.
pub(crate) struct AppendFile {
    disk: Disk,
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    length: u64,
}

impl AppendFile {
    /// Bytes appended so far: where the next one goes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        if self.buffer.len() + bytes.len() > WRITE_BUFFER {
            self.write_out()?;
        }
        self.length += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write_out(&mut self) -> Result<(), DiskError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let AppendFile {
            disk,
            path,
            file,
            buffer,
            ..
        } = self;
        let operation = DiskOperation::Write {
            path,
            bytes: buffer.len(),
        };
        let fault = disk
            .faults
            .as_ref()
            .map_or(Fault::None, |faults| faults.before(&operation));
        let result = match fault {
            Fault::None => file.write_all(buffer),
            Fault::Fail(error) => Err(error),
            Fault::Short { bytes, error } => {
                let part = buffer.get(..bytes).unwrap_or(buffer);
                file.write_all(part).and(Err(error))
            }
        };
        result.map_err(|source| DiskError::new("write", path, source))?;
        if let Some(faults) = &disk.faults {
            faults.after(&operation);
        }
        buffer.clear();
        Ok(())
    }

    /// Writes out the buffer and makes the file durable.
    pub(crate) fn sync(mut self) -> Result<(), DiskError> {
        self.write_out()?;
        let AppendFile {
            disk, path, file, ..
        } = &self;
        disk.run(DiskOperation::Sync { path }, || file.sync_all())
            .map_err(|source| DiskError::new("fsync", path, source))
    }
}

/// A file for reading at any place, by many threads.
pub(crate) struct ReadFile {
    disk: Disk,
    path: PathBuf,
    file: File,
    length: u64,
}

impl ReadFile {
    /// Bytes of the file when it was opened.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `buffer` from `offset` on; a file that ends before is an error, never a short result.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let operation = DiskOperation::Read {
            path: &self.path,
            offset,
            bytes: buffer.len(),
        };
        self.disk
            .run(operation, || self.file.read_exact_at(buffer, offset))
            .map_err(|source| DiskError::new("read", &self.path, source))
    }
}
