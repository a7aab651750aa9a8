//! DESIGN invariant 2, first half: what log stores serve up to their quorum LSN is one history. No two
//! of them ever serve different bytes at one LSN, none takes served bytes back, and every later
//! timeline begins with them.

use pg_types::Lsn;

use super::{Choice, Settled, contained};
use crate::wal::{Byte, index};

#[derive(Debug, Default)]
pub struct OneHistory {
    longest: Vec<Byte>,
    settled: Vec<Settled>,
}

impl OneHistory {
    pub fn add(&mut self, settled: Settled, choices: &[Choice]) -> Result<(), String> {
        if settled.wal.len() > self.longest.len() {
            if !settled.wal.starts_with(&self.longest) {
                return Err("one history: a store serves other bytes than were served".to_owned());
            }
            self.longest.clone_from(&settled.wal);
        } else if !self.longest.starts_with(&settled.wal) {
            return Err("one history: a store serves other bytes than were served".to_owned());
        }
        for choice in choices {
            contained(&settled, choice).map_err(|what| format!("one history: {what}"))?;
        }
        self.settled
            .retain(|it| it.timeline != settled.timeline || it.wal.len() > settled.wal.len());
        self.settled.push(settled);
        Ok(())
    }

    pub fn chose(&self, choice: &Choice) -> Result<(), String> {
        let mut settled = self.settled.iter();
        settled
            .try_for_each(|it| contained(it, choice))
            .map_err(|what| format!("one history: {what}"))
    }

    /// After anything happened to a store: what it serves up to `quorum` is still what was served.
    pub fn still_serves(&self, wal: &[Byte], quorum: Lsn) -> Result<(), String> {
        let served = wal.get(..index(quorum));
        if served.is_some_and(|served| self.longest.starts_with(served)) {
            Ok(())
        } else {
            Err(format!(
                "one history: a store took back bytes below its quorum LSN {}",
                quorum.0
            ))
        }
    }
}
