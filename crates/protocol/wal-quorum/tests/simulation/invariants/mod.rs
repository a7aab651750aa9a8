//! What must hold after every step; one property a file.

mod acknowledged_is_kept;
mod one_history;
mod quorum_rises;

use crate::world::World;

/// All invariants, with what they remember.
#[derive(Default)]
pub struct Invariants {
    one_history: one_history::OneHistory,
    quorum_rises: quorum_rises::QuorumRises,
}

impl Invariants {
    /// Checks every invariant.
    pub fn check(&mut self, world: &World) -> Result<(), String> {
        acknowledged_is_kept::check(world)?;
        self.one_history.check(world)?;
        self.quorum_rises.check(world)
    }
}
