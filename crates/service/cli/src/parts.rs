//! The processes of `up`: starting, watching, restarting, ending them.
//!
//! **Invariant.** A part that ends is started again, more and more slowly while it keeps failing,
//! and no part outlives the supervisor: the kernel ends them with the thread that started them, so
//! only the supervisor's main thread may call [`PartProcess::start`].

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use compute::leftover::send_signal;
use compute::postgres::die_with_parent;
use parking_lot::Mutex;

/// A part that ran this long has not failed to start.
const SETTLED: Duration = Duration::from_secs(10);
/// Longest pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What others may know of a part's process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// How often it has been restarted.
    pub restarts: u64,
    /// How it ended last.
    pub last_exit: Option<String>,
}

/// One part.
#[derive(Debug)]
pub struct PartProcess {
    name: String,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    started: Instant,
    not_before: Instant,
    failures: u32,
    info: Arc<Mutex<ProcessInfo>>,
}

impl PartProcess {
    /// A part that runs this program with `arguments` and writes to `log`.
    #[must_use]
    pub fn new(name: &str, arguments: &[&str], log: PathBuf) -> PartProcess {
        let now = Instant::now();
        PartProcess {
            name: name.to_owned(),
            arguments: arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect(),
            log,
            child: None,
            started: now,
            not_before: now,
            failures: 0,
            info: Arc::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What others may know, kept up to date.
    #[must_use]
    pub fn info(&self) -> Arc<Mutex<ProcessInfo>> {
        Arc::clone(&self.info)
    }

    /// How often it failed to start in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Starts it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(&mut self) -> io::Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.log)?;
        // By this link the program can be run even where its path may not be entered.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("strandline").args(&self.arguments);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // Ctrl-C at the terminal is for the supervisor alone.
        command.process_group(0);
        die_with_parent(&mut command, libc::SIGKILL);
        let child = command.spawn()?;
        self.info.lock().pid = Some(child.id());
        self.started = Instant::now();
        self.child = Some(child);
        Ok(())
    }

    /// Looks whether it ended and starts it again when it is due. Says how it ended, once.
    pub fn tend(&mut self) -> Option<String> {
        let ended = self.reap();
        if let Some(how) = &ended {
            self.failures = if self.started.elapsed() > SETTLED {
                0
            } else {
                self.failures + 1
            };
            let pause = match self.failures {
                0 | 1 => Duration::ZERO,
                more => Duration::from_millis(50)
                    .saturating_mul(1 << more.min(10))
                    .min(MAX_PAUSE),
            };
            self.not_before = Instant::now() + pause;
            let mut info = self.info.lock();
            info.last_exit = Some(how.clone());
            info.restarts += 1;
        }
        if self.child.is_none()
            && Instant::now() >= self.not_before
            && let Err(error) = self.start()
        {
            self.failures += 1;
            self.not_before = Instant::now() + MAX_PAUSE;
            return Some(error.to_string());
        }
        ended
    }

    fn reap(&mut self) -> Option<String> {
        let how = match self.child.as_mut()?.try_wait() {
            Ok(None) => return None,
            // What it wrote before somebody killed it does not say why.
            Ok(Some(status)) if status.signal().is_some() => {
                self.child = None;
                self.info.lock().pid = None;
                return Some(status.to_string());
            }
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.child = None;
        self.info.lock().pid = None;
        Some(match self.last_line() {
            Some(line) => format!("{how}: {line}"),
            None => how,
        })
    }

    /// The last line it wrote.
    fn last_line(&self) -> Option<String> {
        let bytes = fs::read(&self.log).ok()?;
        let tail = bytes.get(bytes.len().saturating_sub(4096)..)?;
        let text = String::from_utf8_lossy(tail);
        // A hint follows the line that says what is wrong.
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let (last, before) = lines.split_last()?;
        match last.strip_prefix("hint: ") {
            Some(hint) => Some(format!("{} (hint: {hint})", before.last().unwrap_or(&""))),
            None => Some((*last).to_owned()),
        }
        .map(|line| line.trim_start_matches("strandline: ").to_owned())
    }

    /// Asks it to end with SIGTERM, waits up to `patience`, then kills it.
    pub fn end(&mut self, patience: Duration) {
        let Some(child) = self.child.as_mut() else {
            return;
        };
        let begun = Instant::now();
        send_signal(child.id(), libc::SIGTERM);
        while begun.elapsed() < patience {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => break,
            }
        }
        if matches!(child.try_wait(), Ok(None)) {
            // Already ended: nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.child = None;
        self.info.lock().pid = None;
    }
}
