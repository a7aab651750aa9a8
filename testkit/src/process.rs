//! Finding and killing processes by id, through `/proc`.

use std::fs;

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Its command line, arguments joined by spaces.
    pub command: String,
}

/// What a process of a running `strandline up` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `strandline up` itself.
    Supervisor,
    /// A log store.
    LogStore,
    /// The storage node.
    StorageNode,
    /// The compute manager.
    ComputeManager,
    /// PostgreSQL's postmaster.
    Postmaster,
    /// A process that serves a client.
    Backend,
    /// Another child of the postmaster.
    Auxiliary,
}

/// Every process that descends from `root`, itself included, with its role.
#[must_use]
pub fn family(root: u32) -> Vec<(Process, Role)> {
    let all = all_processes();
    let mut found: Vec<(Process, Role)> = Vec::new();
    let mut frontier: Vec<Process> = all.iter().filter(|one| one.pid == root).cloned().collect();
    while let Some(one) = frontier.pop() {
        frontier.extend(all.iter().filter(|child| child.parent == one.pid).cloned());
        let parent = found
            .iter()
            .find(|(known, _)| known.pid == one.parent)
            .map(|(_, role)| *role);
        let role = role_of(&one, parent);
        found.push((one, role));
    }
    found
}

fn role_of(process: &Process, parent: Option<Role>) -> Role {
    let command = process.command.as_str();
    match parent {
        Some(Role::Postmaster) if command.contains("[local]") || command.contains("127.0.0.1") => {
            Role::Backend
        }
        Some(Role::Postmaster) => Role::Auxiliary,
        // `up --log-stores 3` is no log store.
        _ if command.contains("log-store run") => Role::LogStore,
        _ if command.contains("storage-node run") => Role::StorageNode,
        _ if command.contains("compute run") => Role::ComputeManager,
        Some(Role::ComputeManager) => Role::Postmaster,
        _ => Role::Supervisor,
    }
}

fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(read_process)
        .collect()
}

fn read_process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so fields are counted from its end.
    let after = stat.get(stat.rfind(')')? + 2..)?;
    let mut fields = after.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let raw = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&raw)
        .replace('\0', " ")
        .trim()
        .to_owned();
    Some(Process {
        pid,
        parent,
        command,
    })
}

/// Sends `signal` to one process; a process that is gone already is no error.
#[allow(unsafe_code, reason = "kill(2) has no safe wrapper in std")]
pub fn signal(pid: u32, signal: i32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return;
    };
    // SAFETY: kill takes two integers and touches no memory of this process.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Whether the process exists and is no zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    read_process(pid).is_some()
}
