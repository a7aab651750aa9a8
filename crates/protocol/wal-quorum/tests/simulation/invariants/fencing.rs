//! DESIGN invariant 3: one writer. A store that promised a timeline acknowledges nothing to a server
//! of a lower one. Promises are remembered here, apart from the stores, so that a store that forgets
//! its own is noticed.

use std::collections::BTreeMap;

use pg_types::TimelineId;

#[derive(Debug, Default)]
pub struct Fencing {
    promised: BTreeMap<usize, TimelineId>,
}

impl Fencing {
    pub fn promised(&mut self, store: usize, timeline: TimelineId) {
        let highest = self.promised.entry(store).or_insert(timeline);
        *highest = timeline.max(*highest);
    }

    pub fn acknowledges(&self, store: usize, timeline: TimelineId) -> Result<(), String> {
        match self.promised.get(&store) {
            Some(promised) if timeline < *promised => Err(format!(
                "fencing: store {store} acknowledges timeline {timeline} and has promised {promised}"
            )),
            _ => Ok(()),
        }
    }
}
