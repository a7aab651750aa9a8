//! What a measurement was made on.

use std::fs;

use serde::{Deserialize, Serialize};

/// Description of a machine, as far as it matters for comparing ratios.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors visible to this process.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here() -> Machine {
        let field = |file: &str, name: &str| -> String {
            fs::read_to_string(file)
                .unwrap_or_default()
                .lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let memory_kib: u64 = field("/proc/meminfo", "MemTotal")
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or_default();
        Machine {
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }
}
