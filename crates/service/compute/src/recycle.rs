//! Using the files of an ended incarnation again for the next one.
//!
//! A data directory has a thousand files, nearly all of them sparse, and each incarnation needs the
//! same ones. ext4 does not hand out an inode again for one to five minutes after its file was deleted
//! and looks for another one every time: a directory that is built while the one before it is being
//! deleted costs 0.2 to 0.5 ms a file, a whole second in the end. So the tree stays: a file that is
//! needed again is emptied and given its size in place, a file that is not needed is moved to a pool
//! and serves under another name later, and only what the pool lacks is created. Hardly anything is
//! ever deleted.
//!
//! **Invariant.** Only inodes and names are used again, never bytes: [`Remains::create`] returns an
//! empty file whatever it was before, and after [`Remains::sweep`] the tree holds nothing but what was
//! asked for since the survey. A file is used again only if no process of an earlier incarnation can
//! still write to it; a backend that outlives its server and writes an old page into a file that now
//! belongs to the next one would be read as that one's data. Therefore:
//!
//! - [`Remains::survey`] takes proof ([`Ended`]) that no process works in the directory or holds a
//!   descriptor for writing below it; without it the directory is moved aside and built afresh.
//! - What `/proc` shows is all there can be: the tree carries a mark of the boot and of the process
//!   namespace in which it was built, and is used again only under the same mark. A process in
//!   another container or on another machine could not be seen.
//! - A file is used again only if it is ours alone: a regular file with the mode that PostgreSQL gives
//!   it, no second link. `shim.map`, which processes map, is never used again.
//! - [`Tidying`], the one thread that touches the pool later, ends before the next survey.
//!
//! When anything about it fails, the mark is taken away, and the next start builds afresh.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::leftover::Ended;

/// Pool of files that no incarnation uses, in the compute directory.
const POOL: &str = "recycled";
/// Where and when the tree was built, in the compute directory.
const MARK: &str = "built-under";
/// The trees of an incarnation.
const TREES: [&str; 2] = ["pgdata", "tablespaces"];
/// Files of an incarnation beside its trees.
const LOOSE: [&str; 2] = ["shim.map", "external.pid"];
/// Most files that wait in the pool. A start lacks at most what was cut off from it as
/// [`LARGE_BYTES`], a few dozen files.
const POOL_FILES: usize = 1024;
/// Emptying a file takes time by what it holds: a larger one is left for after the start.
const LARGE_BYTES: u64 = 1 << 20;
/// With less free than this, the space that old files hold is needed at once.
const SHORT_OF_SPACE: u64 = 1 << 30;
/// The mode of PostgreSQL's files.
const FILE_MODE: u32 = 0o600;

/// What an ended incarnation left, to be claimed file by file.
#[derive(Debug)]
pub struct Remains {
    compute: PathBuf,
    owner: u32,
    /// Largest file, in bytes on disk, that is emptied at once.
    at_once: u64,
    files: HashSet<PathBuf>,
    directories: HashSet<PathBuf>,
    made: HashSet<PathBuf>,
    spare: Vec<PathBuf>,
    next_name: u64,
    /// Files that have been used again.
    pub reused: usize,
    /// Files that had to be created.
    pub created: usize,
}

impl Remains {
    /// Looks through `compute`, which is made if it is missing. Without proof that its processes have
    /// ended, and when anything is odd about it, everything in it is discarded instead.
    ///
    /// # Errors
    /// The operating system's, when the directory can be neither used nor discarded.
    pub fn survey(compute: &Path, ended: &Ended) -> io::Result<Remains> {
        let mark = fs::read_to_string(compute.join(MARK)).unwrap_or_default();
        let usable = match ended {
            Ended::All => !mark.is_empty() && this_system().is_some_and(|here| here == mark),
            Ended::Unsure(why) => {
                tracing::warn!(%why, "an earlier incarnation's files are not used again");
                false
            }
        };
        if usable {
            match Remains::look(compute) {
                Ok(remains) => return Ok(remains),
                Err(error) => {
                    tracing::warn!(%error, "an earlier incarnation's files cannot be used again");
                }
            }
        }
        discard(compute)?;
        match DirBuilder::new().mode(0o700).create(compute) {
            // A file system of its own is there already.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        make_pool(compute)?;
        if let Some(here) = this_system() {
            fs::write(compute.join(MARK), here)?;
        }
        Remains::look(compute)
    }

    fn look(compute: &Path) -> io::Result<Remains> {
        make_pool(compute)?;
        let pool = compute.join(POOL);
        let mut remains = Remains {
            compute: compute.to_owned(),
            owner: fs::metadata(&pool)?.uid(),
            at_once: if free_bytes(compute)? < SHORT_OF_SPACE {
                u64::MAX
            } else {
                LARGE_BYTES
            },
            files: HashSet::new(),
            directories: HashSet::new(),
            made: HashSet::new(),
            spare: Vec::new(),
            next_name: 0,
            reused: 0,
            created: 0,
        };
        for entry in fs::read_dir(&pool)? {
            let path = entry?.path();
            let number = path
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            remains.next_name = remains
                .next_name
                .max(number.map_or(0, |number: u64| number + 1));
            remains.spare.push(path);
        }
        for name in LOOSE {
            remove_if_there(&compute.join(name))?;
        }
        let mut pending: Vec<PathBuf> = TREES.iter().map(|name| compute.join(name)).collect();
        while let Some(directory) = pending.pop() {
            let entries = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    pending.push(entry.path());
                } else if kind.is_file() {
                    remains.files.insert(entry.path());
                } else {
                    // Links of tablespaces, sockets.
                    fs::remove_file(entry.path())?;
                }
            }
            remains.directories.insert(directory);
        }
        Ok(remains)
    }

    /// Makes a directory, or keeps one that was there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make_directory(&mut self, path: &Path) -> io::Result<()> {
        if self.directories.remove(path) {
            return Ok(());
        }
        DirBuilder::new().mode(0o700).create(path)
    }

    /// An empty file at `path`, open for writing.
    ///
    /// # Errors
    /// The operating system's; `AlreadyExists` when it was asked for before.
    pub fn create(&mut self, path: &Path) -> io::Result<File> {
        // A spare file that is renamed would replace what is there.
        if !self.made.insert(path.to_owned()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.files.remove(path) {
            if let Some(file) = self.emptied(path)? {
                self.reused += 1;
                return Ok(file);
            }
            self.put_aside(path)?;
        }
        while let Some(spare) = self.spare.pop() {
            // What cannot be used stays in the pool for the tidying.
            if let Some(file) = self.emptied(&spare)? {
                fs::rename(&spare, path)?;
                self.reused += 1;
                return Ok(file);
            }
        }
        self.created += 1;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(path)
    }

    /// The file at `path` without its content, if it may be used again and that takes no time.
    fn emptied(&self, path: &Path) -> io::Result<Option<File>> {
        let Some((file, bytes)) = open_ours(path, self.owner)? else {
            return Ok(None);
        };
        if bytes > self.at_once {
            return Ok(None);
        }
        file.set_len(0)?;
        Ok(Some(file))
    }

    fn put_aside(&mut self, path: &Path) -> io::Result<()> {
        if self.at_once == u64::MAX
            && let Some((file, _)) = open_ours(path, self.owner)?
        {
            file.set_len(0)?;
        }
        let aside = self.compute.join(POOL).join(self.next_name.to_string());
        self.next_name += 1;
        fs::rename(path, aside)
    }

    /// Takes everything out of the tree that was not asked for.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sweep(mut self) -> io::Result<()> {
        for path in std::mem::take(&mut self.files) {
            self.put_aside(&path)?;
        }
        let mut directories: Vec<PathBuf> = self.directories.drain().collect();
        // What lies deeper first.
        directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for directory in directories {
            fs::remove_dir(directory)?;
        }
        tracing::info!(
            reused = self.reused,
            created = self.created,
            "files of the data directory"
        );
        Ok(())
    }
}

/// Says that the tree in `compute` must not be used again.
pub fn forsake(compute: &Path) {
    if let Err(error) = remove_if_there(&compute.join(MARK)) {
        tracing::warn!(%error, "could not unmark a half-built directory");
    }
}

/// The boot and process namespace of this process.
fn this_system() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}\n", boot.trim(), namespace.display()))
}

/// Opens a file that only PostgreSQL and this process can have written, and says how many bytes it
/// takes on disk; `None` for any other.
fn open_ours(path: &Path, owner: u32) -> io::Result<Option<(File, u64)>> {
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    let ours = about.is_file()
        && about.uid() == owner
        && about.mode() & 0o7777 == FILE_MODE
        && about.nlink() == 1;
    Ok(ours.then(|| (file, about.blocks().saturating_mul(512))))
}

fn make_pool(compute: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(compute.join(POOL)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[allow(unsafe_code, reason = "statvfs has no wrapper in std")]
fn free_bytes(directory: &Path) -> io::Result<u64> {
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statvfs is a valid value for statvfs to overwrite.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in NUL and `about` is writable; both live through the call.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

const DISCARD_PREFIX: &str = ".discarded-";

/// Removes everything of an incarnation: moved aside at once, deleted later by [`Tidying`], so that a
/// start does not wait for it. A directory that is a file system of its own cannot be moved: it is
/// emptied of what is ours.
fn discard(compute: &Path) -> io::Result<()> {
    let Some(parent) = compute.parent() else {
        return Ok(());
    };
    for attempt in 0u32.. {
        let aside = parent.join(format!("{DISCARD_PREFIX}{attempt}"));
        if aside.exists() {
            continue;
        }
        return match fs::rename(compute, &aside) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => empty(compute),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    Ok(())
}

fn empty(compute: &Path) -> io::Result<()> {
    for name in LOOSE.iter().chain([&MARK]) {
        remove_if_there(&compute.join(name))?;
    }
    for name in TREES.iter().chain([&POOL]) {
        match fs::remove_dir_all(compute.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A thread that empties the pool's files, deletes those that are too many, and what was moved aside.
/// Dropping it ends it after the file it is at.
#[derive(Debug)]
pub struct Tidying {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tidying {
    /// Begins, once the server is ready.
    #[must_use]
    pub fn start(compute: &Path) -> Tidying {
        let end = Arc::new(AtomicBool::new(false));
        let (compute, ending) = (compute.to_owned(), Arc::clone(&end));
        let thread = std::thread::Builder::new()
            .name("tidy".to_owned())
            .spawn(move || {
                if let Err(error) = tidy(&compute, &ending) {
                    tracing::warn!(%error, "could not tidy up after earlier incarnations");
                }
            });
        if let Err(error) = &thread {
            tracing::warn!(%error, "files of earlier incarnations stay");
        }
        Tidying {
            end,
            thread: thread.ok(),
        }
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It ended by itself or by a panic of its own; either way it is gone.
            let _ = thread.join();
        }
    }
}

fn tidy(compute: &Path, ending: &AtomicBool) -> io::Result<()> {
    let pool = compute.join(POOL);
    let owner = fs::metadata(&pool)?.uid();
    let mut kept = 0;
    for entry in fs::read_dir(&pool)? {
        if ending.load(Ordering::SeqCst) {
            return Ok(());
        }
        let path = entry?.path();
        match open_ours(&path, owner) {
            Ok(Some((file, _))) if kept < POOL_FILES => {
                file.set_len(0)?;
                kept += 1;
            }
            _ => fs::remove_file(&path)?,
        }
    }
    let Some(data) = compute.parent() else {
        return Ok(());
    };
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let discarded = entry
            .file_name()
            .as_bytes()
            .starts_with(DISCARD_PREFIX.as_bytes());
        if discarded {
            delete(&entry.path(), ending)?;
        }
    }
    Ok(())
}

/// Deletes a tree file by file, until told to end.
fn delete(directory: &Path, ending: &AtomicBool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        if ending.load(Ordering::SeqCst) {
            return Ok(());
        }
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            delete(&entry.path(), ending)?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    if ending.load(Ordering::SeqCst) {
        return Ok(());
    }
    fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::process::{Command, Stdio};

    use crate::leftover::end_processes;

    /// A directory that an incarnation has left, with 3 relation files of one page, "old" in each.
    fn left(dir: &Path) -> PathBuf {
        let compute = dir.join("compute");
        let mut first = Remains::survey(&compute, &Ended::All).unwrap();
        first.make_directory(&compute.join("pgdata")).unwrap();
        first.make_directory(&compute.join("pgdata/base")).unwrap();
        for name in ["1", "2", "3"] {
            let path = compute.join("pgdata/base").join(name);
            let file = first.create(&path).unwrap();
            file.set_len(8192).unwrap();
            file.write_all_at(b"old", 0).unwrap();
        }
        assert_eq!((first.reused, first.created), (0, 3));
        first.sweep().unwrap();
        compute
    }

    fn files(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn again(compute: &Path, ended: &Ended) -> Remains {
        let mut next = Remains::survey(compute, ended).unwrap();
        next.make_directory(&compute.join("pgdata")).unwrap();
        next.make_directory(&compute.join("pgdata/base")).unwrap();
        next
    }

    #[test]
    fn inodes_are_used_again_and_bytes_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        let base = compute.join("pgdata/base");
        let inode = fs::metadata(base.join("1")).unwrap().ino();
        let mut next = again(&compute, &Ended::All);
        let file = next.create(&base.join("1")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        file.set_len(3 * 8192).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), inode);
        assert_eq!(fs::read(base.join("1")).unwrap(), vec![0; 3 * 8192]);
        let twice = next.create(&base.join("1")).unwrap_err();
        assert_eq!(twice.kind(), io::ErrorKind::AlreadyExists);
        next.create(&base.join("9")).unwrap();
        assert_eq!((next.reused, next.created), (1, 1));
        next.sweep().unwrap();
        assert_eq!(files(&base), ["1", "9"], "nothing that was not asked for");

        // What was swept away serves under another name.
        let mut third = again(&compute, &Ended::All);
        for name in ["1", "7", "8", "9"] {
            let file = third.create(&base.join(name)).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 0, "{name}");
        }
        assert_eq!((third.reused, third.created), (4, 0));
        third.sweep().unwrap();
        assert_eq!(files(&base), ["1", "7", "8", "9"]);
        assert!(files(&compute.join(POOL)).is_empty());
    }

    #[test]
    fn directories_links_and_sockets_that_are_not_needed_go() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        let deep = compute.join("pgdata/base/5/pgsql_tmp");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("sort"), "x").unwrap();
        std::os::unix::fs::symlink("/", compute.join("pgdata/base/link")).unwrap();
        fs::write(compute.join("shim.map"), "map").unwrap();
        let next = again(&compute, &Ended::All);
        assert!(!compute.join("shim.map").exists());
        next.sweep().unwrap();
        assert!(files(&compute.join("pgdata/base")).is_empty());
        assert_eq!(files(&compute.join(POOL)).len(), 4);
        assert!(Path::new("/").is_dir());
    }

    #[test]
    fn a_file_with_another_link_or_mode_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        let base = compute.join("pgdata/base");
        let backup = dir.path().join("backup");
        fs::hard_link(base.join("1"), &backup).unwrap();
        fs::set_permissions(base.join("2"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(base.join("3"), vec![7; 2 << 20]).unwrap();
        let mut next = again(&compute, &Ended::All);
        // A file system that is nearly full is emptied at once.
        next.at_once = LARGE_BYTES;
        for name in ["1", "2", "3"] {
            let file = next.create(&base.join(name)).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 0, "{name}");
        }
        assert_eq!((next.reused, next.created), (0, 3));
        next.sweep().unwrap();
        let mut start = [0; 3];
        File::open(&backup).unwrap().read_exact(&mut start).unwrap();
        assert_eq!(&start, b"old");

        // Tidying keeps the large one, emptied, and drops the others.
        drop_when_done(Tidying::start(&compute));
        let pool = compute.join(POOL);
        let kept = files(&pool);
        assert_eq!(kept.len(), 1);
        assert_eq!(fs::metadata(pool.join(&kept[0])).unwrap().len(), 0);
        assert_eq!(fs::read(&backup).unwrap().len(), 8192);
    }

    fn drop_when_done(mut tidying: Tidying) {
        tidying.thread.take().unwrap().join().unwrap();
    }

    #[test]
    fn the_pool_is_bounded_and_what_was_discarded_goes() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        for number in 0..POOL_FILES + 50 {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(FILE_MODE);
            let path = compute.join(POOL).join(number.to_string());
            options.open(path).unwrap().write_all(b"old").unwrap();
        }
        let discarded = dir.path().join(".discarded-0/pgdata/base");
        fs::create_dir_all(&discarded).unwrap();
        fs::write(discarded.join("1"), "old").unwrap();
        drop_when_done(Tidying::start(&compute));
        let kept = files(&compute.join(POOL));
        assert_eq!(kept.len(), POOL_FILES);
        for name in kept {
            let about = fs::metadata(compute.join(POOL).join(name)).unwrap();
            assert_eq!(about.len(), 0);
        }
        assert!(!dir.path().join(".discarded-0").exists());
        assert_eq!(files(&compute.join("pgdata/base")), ["1", "2", "3"]);
    }

    #[test]
    fn without_proof_everything_is_fresh() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        let base = compute.join("pgdata/base");
        let fresh = |ended: &Ended| {
            let held = File::open(base.join("1")).unwrap();
            let mut next = again(&compute, ended);
            let file = next.create(&base.join("1")).unwrap();
            file.set_len(8192).unwrap();
            file.write_all_at(b"old", 0).unwrap();
            assert_eq!((next.reused, next.created), (0, 1));
            next.sweep().unwrap();
            let old = held.metadata().unwrap();
            assert_ne!(file.metadata().unwrap().ino(), old.ino());
            assert_eq!(old.len(), 8192, "the old file is as it was");
        };
        fresh(&Ended::Unsure("nobody looked".to_owned()));
        fs::write(compute.join(MARK), "another boot pid:[1]\n").unwrap();
        fresh(&Ended::All);
        forsake(&compute);
        fresh(&Ended::All);
    }

    #[test]
    fn a_writer_that_was_orphaned_is_gone_before_its_file_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let compute = left(dir.path());
        let stub = compute.join("pgdata/base/1");
        // Works elsewhere and writes through a descriptor that it has held since before.
        let held = OpenOptions::new().append(true).open(&stub).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do echo stale; done"]);
        shell.current_dir("/").stdin(Stdio::null()).stdout(held);
        let mut writer = shell.spawn().unwrap();
        while fs::metadata(&stub).unwrap().len() < 8192 + 100 {
            std::thread::yield_now();
        }
        let ended = end_processes(&compute).unwrap();
        assert_eq!(ended, Ended::All);
        let mut next = again(&compute, &ended);
        let file = next.create(&stub).unwrap();
        file.set_len(8192).unwrap();
        assert_eq!(next.reused, 1);
        next.sweep().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(fs::read(&stub).unwrap(), vec![0; 8192]);
        assert!(!writer.wait().unwrap().success());
    }
}
