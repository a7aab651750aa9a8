//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use pg_types::Lsn;

/// Storage-disaggregated storage for stock PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "strandline", version, about, disable_help_subcommand = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything on this machine in the foreground: log stores, storage node, PostgreSQL
    Up(UpArguments),
    /// Show every part of a running cluster
    Status {
        #[command(flatten)]
        data: DataArguments,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start, stop or kill the compute node of a running cluster
    #[command(subcommand)]
    Compute(ComputeCommand),
    /// Make a cluster from a cleanly stopped stock data directory
    Import {
        /// The data directory of the stock cluster; it is only read
        #[arg(long, value_name = "PGDATA")]
        from: PathBuf,
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Show what is in a file: WAL, pages, layers, control files
    #[command(subcommand)]
    Inspect(InspectCommand),
    /// Measure against stock PostgreSQL, interleaved, on this machine; leaves NAME.json and NAME.svg
    Bench(BenchArguments),
    /// Log store processes
    #[command(subcommand)]
    LogStore(ServiceCommand),
    /// Storage node processes
    #[command(subcommand)]
    StorageNode(ServiceCommand),
}

/// Which cluster.
#[derive(Debug, Clone, Args)]
pub struct DataArguments {
    /// The cluster's directory [default: /var/lib/strandline for root, ~/.local/share/strandline otherwise]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// How a cluster is created.
#[derive(Debug, Clone, Args)]
pub struct CreateArguments {
    #[command(flatten)]
    pub data: DataArguments,
    /// Directory of PostgreSQL's programs [default: the newest supported one below /usr/lib/postgresql, or the one in PATH]
    #[arg(long, value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
    /// Number of log stores: 1, or 3 of which 2 must have a commit [default: 1]
    #[arg(long, value_name = "N", value_parser = ["1", "3"])]
    pub log_stores: Option<String>,
    /// Ordinary user to run as when started as root [default: the owner of the data directory, postgres, or strandline]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

/// Arguments of `up`.
#[derive(Debug, Clone, Args)]
pub struct UpArguments {
    #[command(flatten)]
    pub create: CreateArguments,
    /// Address and port PostgreSQL listens on; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5432")]
    pub listen: String,
    /// Most fetched pages to keep on the compute node's disk, such as 512MB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Seconds a read waits for an unreachable storage node before it fails; 0 waits forever
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub read_timeout: u64,
}

/// Arguments of `bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArguments {
    /// Which one
    pub name: BenchName,
    /// Where to leave the results
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// Directory of PostgreSQL's programs [default: /usr/lib/postgresql/15/bin]
    #[arg(long, value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
    /// Measurements of each thing
    #[arg(long, default_value_t = bench::Effort::default().rounds)]
    pub rounds: u32,
    /// Seconds of one pgbench run
    #[arg(long, default_value_t = bench::Effort::default().seconds)]
    pub seconds: u32,
    /// pgbench scale; `start` uses 17 times as much (340 is 5 GB)
    #[arg(long, default_value_t = bench::Effort::default().scale)]
    pub scale: u32,
}

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchName {
    /// pgbench on both, and cold sequential scans
    Overhead,
    /// Latency of GetPage@LSN
    Getpage,
    /// WAL into page versions
    Ingest,
    /// Native redo against stock recovery
    Redo,
    /// `compute start` to the first query
    Start,
}

/// Commands for the compute node.
#[derive(Debug, Clone, Subcommand)]
pub enum ComputeCommand {
    /// Start a fresh incarnation and wait until it is ready
    Start {
        #[command(flatten)]
        data: DataArguments,
    },
    /// Stop PostgreSQL cleanly; storage goes on
    Stop {
        #[command(flatten)]
        data: DataArguments,
    },
    /// Kill PostgreSQL as a crash would; a fresh incarnation follows
    Kill {
        #[command(flatten)]
        data: DataArguments,
        /// Leave it stopped
        #[arg(long)]
        stay_down: bool,
    },
    /// List compute nodes
    List {
        #[command(flatten)]
        data: DataArguments,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Manage one compute node (started by `up`)
    #[command(hide = true)]
    Run {
        /// Configuration file
        #[arg(long)]
        config: PathBuf,
    },
}

/// What to look at.
#[derive(Debug, Clone, Subcommand)]
pub enum InspectCommand {
    /// Records of WAL segment files
    Wal {
        /// A segment file, or a directory of them
        path: PathBuf,
        /// Where to begin [default: the first record]
        #[arg(long, value_name = "LSN")]
        start: Option<Lsn>,
        /// Records to print at most
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Print one JSON object a record
        #[arg(long)]
        json: bool,
    },
    /// A page of a relation file
    Page {
        /// The file
        path: PathBuf,
        /// Block within the file
        #[arg(long, default_value_t = 0)]
        block: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// A layer file of a storage node
    Layer {
        /// The file
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// A `pg_control` file, or the one of a data directory
    Control {
        /// The file or the data directory
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Commands of a service process.
#[derive(Debug, Clone, Subcommand)]
pub enum ServiceCommand {
    /// Run in the foreground
    Run {
        /// Configuration file
        #[arg(long)]
        config: PathBuf,
    },
}

/// Bytes from `64MB`, `1GB`, `512kB` or a plain number.
///
/// # Errors
/// A message for the user.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err("expected a size such as 512MB or 2GB".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "expected a size such as 512MB or 2GB".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64MB"), Ok(64 << 20));
        assert_eq!(parse_size("2 gb"), Ok(2 << 30));
        assert_eq!(parse_size("8192"), Ok(8192));
        assert!(parse_size("MB").is_err());
        assert!(parse_size("99999999999TB").is_err());
    }
}
