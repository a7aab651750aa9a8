//! A bench's measurements, and the files they are kept in.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::figure;
use crate::machine::Machine;

/// One thing that was measured several times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What, such as `tpcb/clients=8/strandline`.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// The measurements, in the order they were made.
    pub values: Vec<f64>,
}

impl Series {
    /// An empty series.
    #[must_use]
    pub fn new(name: &str, unit: &str) -> Series {
        Series {
            name: name.to_owned(),
            unit: unit.to_owned(),
            values: Vec::new(),
        }
    }

    /// The middle value; zero when there is none.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => sorted[odd / 2],
            even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
        }
    }
}

/// A figure that the bench was run for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it says, such as `tpcb/clients=8: strandline / stock`.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its unit; empty for ratios.
    pub unit: String,
    /// What was aimed for, such as `>= 1.0`.
    pub goal: String,
    /// Whether the goal is met.
    pub met: bool,
}

/// Everything a bench measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the bench.
    pub bench: String,
    /// What it does, in a sentence.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
    /// Version of the server that was used.
    pub server: String,
    /// The machine.
    pub machine: Machine,
    /// The raw measurements.
    pub series: Vec<Series>,
    /// What follows from them.
    pub findings: Vec<Finding>,
}

impl Report {
    /// An empty report of `bench`.
    #[must_use]
    pub fn new(bench: &str, what: &str, server: &str) -> Report {
        Report {
            bench: bench.to_owned(),
            what: what.to_owned(),
            command: format!("strandline bench {bench}"),
            server: server.to_owned(),
            machine: Machine::here(),
            series: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Records a figure whose goal is at least `goal`.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &str, goal: f64) {
        self.findings.push(Finding {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            goal: format!(">= {goal}"),
            met: value >= goal,
        });
    }

    /// Records a figure whose goal is at most `goal`.
    pub fn at_most(&mut self, name: &str, value: f64, unit: &str, goal: f64) {
        self.findings.push(Finding {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            goal: format!("<= {goal}"),
            met: value <= goal,
        });
    }

    /// Records a figure that has no goal.
    pub fn finding(&mut self, name: &str, value: f64, unit: &str) {
        self.findings.push(Finding {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            goal: String::new(),
            met: true,
        });
    }

    /// Writes `BENCH.json` and draws `BENCH.svg` beside it.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let json = directory.join(format!("{}.json", self.bench));
        fs::write(&json, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| json.display().to_string())?;
        figure::draw(self, &directory.join(format!("{}.svg", self.bench)))
    }

    /// The findings as lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.bench, self.what);
        for finding in &self.findings {
            let verdict = match (finding.goal.is_empty(), finding.met) {
                (true, _) => String::new(),
                (false, true) => format!("   goal {}: met", finding.goal),
                (false, false) => format!("   goal {}: MISSED", finding.goal),
            };
            text.push_str(&format!(
                "  {:<52} {:>12.3} {}{verdict}\n",
                finding.name, finding.value, finding.unit
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let series = |values: &[f64]| Series {
            values: values.to_vec(),
            ..Series::new("a", "ms")
        };
        assert_eq!(series(&[]).median(), 0.0);
        assert_eq!(series(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(series(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
    }
}
