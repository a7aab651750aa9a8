//! `strandline inspect`: reading the file, and printing what `inspect` makes of its bytes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pg_types::BLCKSZ;

use crate::arguments::InspectCommand;
use crate::error::{Failure, Outcome};
use crate::inspect::{self, Inspection};

/// Runs the command.
///
/// # Errors
/// [`Failure`] naming the file.
pub fn run(command: InspectCommand) -> Outcome<()> {
    match command {
        InspectCommand::Wal {
            path,
            start,
            limit,
            json,
        } => inspect::wal::print(&path, start, limit, json),
        InspectCommand::Page { path, block, json } => {
            let bytes = read_block(&path, block)?;
            print(
                &inspect::page::page(&bytes, block).map_err(Failure::from)?,
                json,
            )
        }
        InspectCommand::Layer { path, json } => print(&inspect::layer::layer(&path)?, json),
        InspectCommand::Control { path, json } => {
            let file = if path.is_dir() {
                path.join("global/pg_control")
            } else {
                path
            };
            let bytes = fs::read(&file).map_err(|error| at(&file, &error))?;
            let control = inspect::control::control(&bytes);
            print(
                &control.map_err(|error| Failure::from(error).during(file.display()))?,
                json,
            )
        }
    }
}

fn at(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

fn read_block(path: &Path, block: u32) -> Outcome<Vec<u8>> {
    let file = File::open(path).map_err(|error| at(path, &error))?;
    let mut bytes = vec![0; BLCKSZ];
    let mut have = 0;
    while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
        let offset = u64::from(block) * BLCKSZ as u64 + have as u64;
        match file
            .read_at(rest, offset)
            .map_err(|error| at(path, &error))?
        {
            0 => break,
            read => have += read,
        }
    }
    bytes.truncate(have);
    if have == 0 {
        return Err(Failure::new(format!(
            "{} has no block {block}",
            path.display()
        )));
    }
    Ok(bytes)
}

fn print(inspection: &Inspection, json: bool) -> Outcome<()> {
    let text = if json {
        format!("{:#}\n", inspection.json)
    } else {
        inspection.text.clone()
    };
    write_out(text.as_bytes())
}

/// Writes to stdout; a reader that has seen enough is no failure.
///
/// # Errors
/// [`Failure`] when stdout cannot be written.
pub fn write_out(bytes: &[u8]) -> Outcome<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(format!("stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}
