//! Pages of a data directory, read from its files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pg_page::Page;
use pg_page::slru::page_location;
use pg_types::{BLCKSZ, PageKey, RELSEG_BLOCKS, RelFileLocator, RelFork};

/// A data directory.
pub struct DataFiles {
    root: PathBuf,
}

impl DataFiles {
    pub fn new(root: &Path) -> DataFiles {
        DataFiles {
            root: root.to_owned(),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn fork_path(&self, fork: RelFork, segment: u32) -> PathBuf {
        let RelFork { locator, fork } = fork;
        let dir = match locator.spc {
            RelFileLocator::GLOBAL_TABLESPACE => "global".to_owned(),
            _ => format!("base/{}", locator.db),
        };
        let suffix = if segment == 0 {
            String::new()
        } else {
            format!(".{segment}")
        };
        self.root
            .join(format!("{dir}/{}{}{suffix}", locator.rel, fork.suffix()))
    }

    /// Blocks of a fork; zero when it has no file.
    #[allow(
        dead_code,
        reason = "the example that shares this file has no use for it"
    )]
    pub fn blocks(&self, fork: RelFork) -> u32 {
        let mut blocks = 0;
        for segment in 0.. {
            match std::fs::metadata(self.fork_path(fork, segment)) {
                Ok(meta) => blocks += (meta.len() / BLCKSZ as u64) as u32,
                Err(_) => break,
            }
        }
        blocks
    }

    /// The page of `key`, if the files have it.
    pub fn page(&self, key: PageKey) -> Option<Box<Page>> {
        let (path, at) = match (key.as_slru(), key.as_relation()) {
            (Some(slru), _) => {
                let (file, at) = page_location(key.block);
                (self.root.join(slru.directory()).join(file), at)
            }
            (_, Some(fork)) => {
                let at = u64::from(key.block % RELSEG_BLOCKS) * BLCKSZ as u64;
                (self.fork_path(fork, key.block / RELSEG_BLOCKS), at)
            }
            _ => return None,
        };
        let mut page = Box::new([0; BLCKSZ]);
        File::open(path)
            .ok()?
            .read_exact_at(&mut page[..], at)
            .ok()?;
        Some(page)
    }
}
