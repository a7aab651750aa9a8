//! While a store runs, its quorum LSN never falls, and it never exceeds what the store has durable:
//! a reader is never told of WAL that cannot be given.

use pg_types::Lsn;

use crate::world::World;

#[derive(Default)]
pub struct QuorumRises {
    seen: Vec<Lsn>,
}

impl QuorumRises {
    pub fn check(&mut self, world: &World) -> Result<(), String> {
        self.seen.resize(world.stores.len(), Lsn(0));
        for (index, (store, seen)) in world.stores.iter().zip(&mut self.seen).enumerate() {
            if !store.up {
                // A restarted store begins to learn anew; its readers ask it then.
                *seen = Lsn(0);
                continue;
            }
            if store.quorum < *seen {
                return Err(format!("store {index}: {} after {seen}", store.quorum));
            }
            if store.quorum > store.flushed() {
                let flushed = store.flushed();
                return Err(format!(
                    "store {index}: quorum {} > durable {flushed}",
                    store.quorum
                ));
            }
            *seen = store.quorum;
        }
        Ok(())
    }
}
