//! DESIGN invariant 1: a commit that was acknowledged is never lost. What a server counted as flushed
//! by 'ANY q' of its synchronous standbys is contained, with the same bytes, in every history that a
//! later timeline begins with, whether the later timeline was chosen before or after.

use super::{Choice, Settled, contained};

#[derive(Debug, Default)]
pub struct Acknowledged {
    settled: Vec<Settled>,
}

impl Acknowledged {
    pub fn add(&mut self, settled: Settled, choices: &[Choice]) -> Result<(), String> {
        for choice in choices {
            contained(&settled, choice).map_err(|what| format!("acknowledged: {what}"))?;
        }
        for other in &self.settled {
            if !settled.wal.starts_with(&other.wal) && !other.wal.starts_with(&settled.wal) {
                return Err(format!(
                    "acknowledged: servers on timelines {} and {} acknowledged different bytes",
                    other.timeline, settled.timeline
                ));
            }
        }
        // A server acknowledges longer and longer prefixes of one log.
        self.settled.retain(|it| it.timeline != settled.timeline);
        self.settled.push(settled);
        Ok(())
    }

    pub fn chose(&self, choice: &Choice) -> Result<(), String> {
        let mut settled = self.settled.iter();
        settled
            .try_for_each(|it| contained(it, choice))
            .map_err(|what| format!("acknowledged: {what}"))
    }
}
