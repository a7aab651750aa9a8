//! DESIGN invariant 2, second half: no page version rests on WAL that may be cut off. What the storage
//! node has ingested is a prefix of every history that a timeline later begins with.

use super::{Choice, Settled, contained};

#[derive(Debug, Default)]
pub struct Ingested {
    settled: Vec<Settled>,
}

impl Ingested {
    pub fn add(&mut self, settled: Settled, choices: &[Choice]) -> Result<(), String> {
        for choice in choices {
            contained(&settled, choice).map_err(|what| format!("ingested: {what}"))?;
        }
        self.settled.retain(|it| it.timeline != settled.timeline);
        self.settled.push(settled);
        Ok(())
    }

    pub fn chose(&self, choice: &Choice) -> Result<(), String> {
        let mut settled = self.settled.iter();
        settled
            .try_for_each(|it| contained(it, choice))
            .map_err(|what| format!("ingested: {what}"))
    }
}
