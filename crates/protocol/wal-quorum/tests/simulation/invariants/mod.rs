//! What must hold, one property a file.

pub mod acknowledged;
pub mod fencing;
pub mod ingested;
pub mod liveness;
pub mod one_history;

use pg_types::TimelineId;

use crate::wal::Byte;

/// WAL that became irrevocable on a timeline.
#[derive(Debug, Clone)]
pub struct Settled {
    pub timeline: TimelineId,
    pub wal: Vec<Byte>,
}

/// A history that a timeline began with.
#[derive(Debug, Clone)]
pub struct Choice {
    pub timeline: TimelineId,
    pub wal: Vec<Byte>,
}

/// Whether `choice`, if it is later, contains what was settled.
fn contained(settled: &Settled, choice: &Choice) -> Result<(), String> {
    if choice.timeline <= settled.timeline || choice.wal.starts_with(&settled.wal) {
        return Ok(());
    }
    let same = settled
        .wal
        .iter()
        .zip(&choice.wal)
        .take_while(|(a, b)| a == b)
        .count();
    Err(format!(
        "{} bytes settled on timeline {}, but timeline {} begins with {} of which {same} are the same",
        settled.wal.len(),
        settled.timeline,
        choice.timeline,
        choice.wal.len(),
    ))
}

/// Everything that is watched in a run.
#[derive(Debug, Default)]
pub struct Invariants {
    pub acknowledged: acknowledged::Acknowledged,
    pub one_history: one_history::OneHistory,
    pub ingested: ingested::Ingested,
    pub fencing: fencing::Fencing,
    choices: Vec<Choice>,
}

impl Invariants {
    pub fn chose(&mut self, choice: Choice) -> Result<(), String> {
        self.acknowledged.chose(&choice)?;
        self.one_history.chose(&choice)?;
        self.ingested.chose(&choice)?;
        self.choices.push(choice);
        Ok(())
    }

    pub fn acknowledge(&mut self, settled: Settled) -> Result<(), String> {
        self.acknowledged.add(settled, &self.choices)
    }

    pub fn serve(&mut self, settled: Settled) -> Result<(), String> {
        self.one_history.add(settled, &self.choices)
    }

    pub fn ingest(&mut self, settled: Settled) -> Result<(), String> {
        self.ingested.add(settled, &self.choices)
    }
}
