//! Ending what an earlier incarnation left behind.
//!
//! **Invariant.** When [`end_processes`] returns, no process works in the compute directory any more or
//! holds a file below it open for writing. A backend that outlives its postmaster would go on reading
//! and writing files that the next incarnation uses again, and hold its socket.
//!
//! Who can write: PostgreSQL's processes, whose working directory is the data directory, and programs
//! that they ran (`archive_command`, `COPY … TO PROGRAM`), which inherit descriptors before 16 and may
//! have changed directory. Both run as our user, so `/proc` shows their working directory and their
//! descriptors. A process found is killed and looked for until two looks in a row find none: one
//! that begins while `/proc` is being read is missed by the first. Whoever only reads is let be.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Processes that would not end.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {pid} of the previous incarnation does not end (hint: look at it with ps; it blocks a new start)"
)]
pub struct LeftoverError {
    /// One of them.
    pub pid: u32,
}

/// Whether anything of an earlier incarnation can still write to its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nothing can.
    All,
    /// Nothing was found, but a process might have been missed.
    Unsure(String),
}

/// Kills every process that works in `compute` or writes to files in it, and waits until they are
/// gone; removes the System V shared memory segment that a killed postmaster leaves.
///
/// # Errors
/// [`LeftoverError`] when one survives SIGKILL for half a minute (it is stuck in the kernel).
pub fn end_processes(compute: &Path) -> Result<Ended, LeftoverError> {
    let segment = shared_memory_segment(&compute.join("pgdata/postmaster.pid"));
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut found_any = false;
    let mut clean = 0;
    let ended = loop {
        let Look { found, unsure } = look(compute);
        let Some(pid) = found.first().copied() else {
            clean += 1;
            if clean < 2 && found_any {
                continue;
            }
            break unsure.map_or(Ended::All, Ended::Unsure);
        };
        (found_any, clean) = (true, 0);
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(LeftoverError { pid });
        }
        for pid in found {
            tracing::info!(pid, "killing a process of the previous incarnation");
            send_signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    if let Some(id) = segment {
        remove_unattached(id);
    }
    Ok(ended)
}

/// What one pass over `/proc` shows.
struct Look {
    found: Vec<u32>,
    unsure: Option<String>,
}

fn look(compute: &Path) -> Look {
    let canonical = fs::canonicalize(compute).unwrap_or_else(|_| compute.to_owned());
    let inside = |path: &Path| path.starts_with(&canonical) || path.starts_with(compute);
    let mut look = Look {
        found: Vec::new(),
        unsure: None,
    };
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(error) => {
            look.unsure = Some(format!("/proc: {error}"));
            return look;
        }
    };
    let own = std::process::id();
    let mut own_seen = false;
    for pid in entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        if pid == own {
            own_seen = true;
            continue;
        }
        match touches(pid, &inside) {
            Ok(true) => look.found.push(pid),
            Ok(false) => {}
            // Another user's process, or one that hides itself; PostgreSQL does not.
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied && is_our_server(pid) {
                    look.unsure = Some(format!("process {pid} cannot be looked at: {error}"));
                }
            }
        }
    }
    if !own_seen {
        look.unsure = Some("/proc does not show this process".to_owned());
    }
    look
}

/// Whether a process works in the directory or has a file of it open for writing.
fn touches(pid: u32, inside: &impl Fn(&Path) -> bool) -> io::Result<bool> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if inside(&fs::read_link(process.join("cwd"))?) {
        return Ok(true);
    }
    for descriptor in fs::read_dir(process.join("fd"))? {
        let descriptor = descriptor?;
        // Closed meanwhile.
        let Ok(target) = fs::read_link(descriptor.path()) else {
            continue;
        };
        if inside(&target) && is_for_writing(&process, &descriptor.file_name()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a descriptor admits writing; one that cannot be asked counts as if.
fn is_for_writing(process: &Path, descriptor: &OsStr) -> bool {
    let about = fs::read_to_string(process.join("fdinfo").join(descriptor)).unwrap_or_default();
    about
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Whether a process that cannot be looked at is called as PostgreSQL's are and runs as our user.
fn is_our_server(pid: u32) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let user = |process: &str| -> Option<String> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("Uid:"))?;
        Some(line.to_owned())
    };
    name.starts_with(b"postgres") && user(&pid.to_string()) == user("self")
}

/// The id on the seventh line of `postmaster.pid` ("key id").
fn shared_memory_segment(pid_file: &Path) -> Option<i32> {
    let text = fs::read_to_string(pid_file).ok()?;
    text.lines().nth(6)?.split_whitespace().nth(1)?.parse().ok()
}

#[allow(unsafe_code, reason = "System V shared memory has no wrapper in std")]
fn remove_unattached(id: i32) {
    // SAFETY: an all-zero shmid_ds is a valid value for shmctl to overwrite.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is a valid, writable shmid_ds; IPC_RMID ignores its pointer. The segment is
    // removed only while nobody is attached, so no running server can lose it.
    unsafe {
        if libc::shmctl(id, libc::IPC_STAT, &raw mut about) == 0 && about.shm_nattch == 0 {
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        }
    }
}

/// Sends `signal`; a process that is gone already is no error.
#[allow(unsafe_code, reason = "kill(2) has no wrapper in std")]
pub fn send_signal(pid: u32, signal: i32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return;
    };
    if pid <= 1 {
        return;
    }
    // SAFETY: kill takes two integers and touches no memory of this process.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Removes the socket and lock file that a killed postmaster left in `run`: PostgreSQL would take
/// the lock for valid if its process id had been given to another of our processes.
///
/// # Errors
/// The operating system's.
pub fn remove_sockets(run: &Path, port: u16) -> io::Result<()> {
    for name in [format!(".s.PGSQL.{port}"), format!(".s.PGSQL.{port}.lock")] {
        match fs::remove_file(run.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_in_the_directory_are_ended_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("pgdata");
        fs::create_dir(&inside).unwrap();
        let mut sleep = std::process::Command::new("sleep");
        let mut victim = sleep.arg("60").current_dir(&inside).spawn().unwrap();
        let mut sleep = std::process::Command::new("sleep");
        let mut bystander = sleep.arg("60").current_dir("/").spawn().unwrap();
        // A zombie has no working directory, so reaping is not needed for it to count as gone.
        assert_eq!(end_processes(dir.path()).unwrap(), Ended::All);
        assert!(!victim.wait().unwrap().success());
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }

    #[test]
    fn writers_elsewhere_are_ended_and_readers_are_not() {
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stub");
        fs::write(&path, "").unwrap();
        let sleeper = |input: Stdio, output: Stdio| {
            let mut sleep = Command::new("sleep");
            sleep.arg("60").current_dir("/").stdin(input).stdout(output);
            sleep.spawn().unwrap()
        };
        let writable = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let mut writer = sleeper(Stdio::null(), writable.into());
        let mut reader = sleeper(fs::File::open(&path).unwrap().into(), Stdio::null());
        assert_eq!(end_processes(dir.path()).unwrap(), Ended::All);
        assert!(!writer.wait().unwrap().success());
        assert!(reader.try_wait().unwrap().is_none());
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
}
