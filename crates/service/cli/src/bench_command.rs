//! `strandline bench`.

use std::path::Path;

use bench::Effort;
use bench::report::Report;

use crate::arguments::{BenchArguments, BenchName};
use crate::error::{Failure, Outcome};
use crate::inspect_command::write_out;

/// Runs one bench, prints its findings and leaves its files.
pub fn run(arguments: &BenchArguments) -> Outcome<()> {
    let report = measure(arguments).map_err(|error| Failure::from_text(&format!("{error:#}")))?;
    report
        .write(&arguments.out)
        .map_err(|error| Failure::from_text(&format!("{error:#}")))?;
    let name = arguments.out.join(&report.bench);
    eprintln!("raw data in {0}.json, drawn in {0}.svg", name.display());
    write_out(report.text().as_bytes())
}

fn measure(arguments: &BenchArguments) -> anyhow::Result<Report> {
    let directory = arguments
        .pg_bin
        .as_deref()
        .unwrap_or_else(|| Path::new("/usr/lib/postgresql/15/bin"));
    let binaries = testkit::PgBinaries::at(directory)?;
    let effort = Effort {
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        scale: arguments.scale,
        start_scale: arguments.scale.saturating_mul(17),
        ..Effort::default()
    };
    match arguments.name {
        BenchName::Overhead => bench::overhead::run(&binaries, &effort),
        BenchName::Getpage => bench::getpage::run(&binaries, &effort),
        BenchName::Ingest => bench::ingest::run(&binaries, &effort),
        BenchName::Redo => bench::redo::run(&binaries, &effort),
        BenchName::Start => bench::start::run(&binaries, &effort),
    }
}
