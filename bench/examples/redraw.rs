//! Draws the figures of reports again: `cargo run --package bench --example redraw -- bench/results/*.json`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use bench::report::Report;

fn main() -> Result<()> {
    for argument in std::env::args().skip(1) {
        let path = Path::new(&argument);
        let text = fs::read_to_string(path).with_context(|| argument.clone())?;
        let report: Report = serde_json::from_str(&text).with_context(|| argument.clone())?;
        bench::figure::draw(&report, &path.with_extension("svg"))?;
    }
    Ok(())
}
