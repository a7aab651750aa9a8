//! The `strandline` program.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 refused or failed with one
//! clear line and a hint, 2 wrong usage.

mod arguments;
mod bench_command;
mod binaries;
mod create;
mod error;
mod inspect;
mod inspect_command;
mod parts;
mod privileges;
mod status;
mod supervisor;
mod up;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use api::supervisor::{SupervisorRequest, SupervisorResponse};
use arguments::{Arguments, Command, ComputeCommand, DataArguments, ServiceCommand};
use clap::Parser;
use error::{Failure, Outcome};
use inspect_command::write_out;

/// How long the supervisor may take to start or stop PostgreSQL.
const PATIENCE: Duration = Duration::from_secs(200);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Service processes log from `info` on, commands only what is wrong; `STRANDLINE_LOG` overrides.
fn start_logging() {
    let service = std::env::args().any(|argument| argument == "run");
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("STRANDLINE_LOG").unwrap_or_else(|_| {
            tracing_subscriber::EnvFilter::new(if service { "info" } else { "warn" })
        });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

fn run(command: Command) -> Outcome<()> {
    match command {
        Command::Up(arguments) => up::up(&arguments),
        Command::Import { from, create } => up::import(&from, &create),
        Command::Status { data, json } => {
            let status = status::cluster_status(&directory(&data)?)?;
            let text = if json {
                to_json(&status)?
            } else {
                status::table(&status)
            };
            write_out(text.as_bytes())
        }
        Command::Compute(command) => compute(command),
        Command::Inspect(command) => inspect_command::run(command),
        Command::Bench(arguments) => bench_command::run(&arguments),
        Command::LogStore(ServiceCommand::Run { config }) => log_server::run(read_config(&config)?)
            .map_err(|error| Failure::from_text(&format!("{error:#}"))),
        Command::StorageNode(ServiceCommand::Run { config }) => {
            page_server::run(&read_config(&config)?)
                .map_err(|error| Failure::from_text(&format!("{error:#}")))
        }
    }
}

fn compute(command: ComputeCommand) -> Outcome<()> {
    let (data, request) = match command {
        ComputeCommand::Run { config } => return manage(&config),
        ComputeCommand::List { data, json } => return list(&directory(&data)?, json),
        ComputeCommand::Start { data } => (data, SupervisorRequest::ComputeStart),
        ComputeCommand::Stop { data } => (data, SupervisorRequest::ComputeStop),
        ComputeCommand::Kill { data, stay_down } => {
            (data, SupervisorRequest::ComputeKill { stay_down })
        }
    };
    match status::ask_supervisor(&directory(&data)?, &request, PATIENCE)? {
        SupervisorResponse::Compute(status) => {
            let pid = status
                .pid
                .map_or_else(String::new, |pid| format!(" (pid {pid})"));
            eprintln!("compute node is {}{pid}", status::state_name(status.state));
            if request == SupervisorRequest::ComputeStart {
                write_out(format!("{}\n", status.connection).as_bytes())?;
            }
            Ok(())
        }
        _ => Err(Failure::new(
            "the supervisor gave an answer that does not belong to the request",
        )),
    }
}

fn list(data: &Path, json: bool) -> Outcome<()> {
    let status = status::cluster_status(data)?;
    if json {
        return write_out(to_json(&[&status.compute])?.as_bytes());
    }
    let mut text = format!(
        "{:<12}{:<10}{:<10}{:<10}{}\n",
        "NAME", "STATE", "PID", "TIMELINE", "CONNECTION"
    );
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let compute = status.compute.status.as_ref();
    text.push_str(&format!(
        "{:<12}{:<10}{:<10}{:<10}{}\n",
        status.compute.name,
        compute.map_or("silent", |compute| status::state_name(compute.state)),
        or_dash(
            compute
                .and_then(|compute| compute.pid)
                .map(|pid| pid.to_string())
        ),
        or_dash(
            compute
                .and_then(|compute| compute.timeline)
                .map(|timeline| timeline.to_string())
        ),
        or_dash(compute.map(|compute| compute.connection.clone())),
    ));
    write_out(text.as_bytes())
}

fn manage(config: &Path) -> Outcome<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(compute::manager::run(config, stop)?)
}

/// A service's configuration file.
fn read_config<T: serde::de::DeserializeOwned>(path: &Path) -> Outcome<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    toml::from_str(&text)
        .map_err(|error| Failure::new(format!("{}: {}", path.display(), error.message())))
}

fn directory(data: &DataArguments) -> Outcome<std::path::PathBuf> {
    privileges::data_directory(data.data.as_deref())
}

fn to_json<T: serde::Serialize + ?Sized>(value: &T) -> Outcome<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}
