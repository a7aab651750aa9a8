//! Ending what an earlier incarnation left behind.
//!
//! **Invariant.** When [`end_processes`] returns, no process works in the incarnation's data
//! directory any more. A backend that outlives its postmaster would go on reading and writing files
//! of a directory that is about to be replaced, and hold its socket.

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

/// Kills every process whose working directory lies in `compute` and waits until they are gone;
/// removes the System V shared memory segment that a killed postmaster leaves.
///
/// # Errors
/// [`LeftoverError`] when one survives SIGKILL for half a minute (it is stuck in the kernel).
pub fn end_processes(compute: &Path) -> Result<(), LeftoverError> {
    let segment = shared_memory_segment(&compute.join("pgdata/postmaster.pid"));
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let found = processes_in(compute);
        let Some(pid) = found.first().copied() else {
            break;
        };
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(LeftoverError { pid });
        }
        for pid in found {
            tracing::info!(pid, "killing a process of the previous incarnation");
            send_signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    if let Some(id) = segment {
        remove_unattached(id);
    }
    Ok(())
}

/// Processes whose working directory is `directory` or below it, also after it was deleted.
fn processes_in(directory: &Path) -> Vec<u32> {
    let canonical = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            fs::read_link(PathBuf::from(format!("/proc/{pid}/cwd")))
                .is_ok_and(|cwd| cwd.starts_with(&canonical) || cwd.starts_with(directory))
        })
        .collect()
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
        end_processes(dir.path()).unwrap();
        assert!(!victim.wait().unwrap().success());
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }
}
