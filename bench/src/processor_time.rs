//! Time that a thread spent on a processor: on a shared machine elapsed time also counts others' work.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// A thread's processor time at some moment.
#[derive(Debug, Clone, Copy)]
pub struct ProcessorTime(Duration);

impl ProcessorTime {
    /// The calling thread's, now.
    ///
    /// # Errors
    /// When the kernel does not tell (`CONFIG_SCHED_INFO`).
    pub fn of_this_thread() -> Result<ProcessorTime> {
        now().map(ProcessorTime)
    }

    /// What the calling thread, which must be the same one, has used since.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn elapsed(&self) -> Result<Duration> {
        Ok(now()?.saturating_sub(self.0))
    }
}

fn now() -> Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).context(path)?;
    // "time on the processor, time waiting for one (ns), time slices"
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .with_context(|| format!("{path} says {text:?}"))
}
