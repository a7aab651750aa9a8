//! There are never two different bytes at one LSN at or below any quorum LSN (DESIGN invariants 2
//! and 3).

use crate::world::{Byte, World};

/// Every byte that was ever within a quorum LSN.
#[derive(Default)]
pub struct OneHistory {
    bytes: Vec<Byte>,
}

impl OneHistory {
    pub fn check(&mut self, world: &World) -> Result<(), String> {
        for (index, store) in world.stores.iter().enumerate() {
            let served = store.wal.iter().take(store.quorum.0 as usize);
            for (lsn, byte) in served.enumerate() {
                match self.bytes.get(lsn) {
                    Some(known) if known == byte => {}
                    Some(known) => {
                        return Err(format!(
                            "store {index} has {byte:?} at {lsn}, but {known:?} was durable there"
                        ));
                    }
                    None => self.bytes.push(*byte),
                }
            }
        }
        Ok(())
    }
}
