//! Once faults stop, a new incarnation commits, the storage node follows it and every store catches up.
//! Servers that do not know that they were replaced stay, and do not matter.

use crate::manager::Step;
use crate::wal::lsn;
use crate::world::World;

/// Steps within which it must happen.
pub const PATIENCE: usize = 6000;

/// Whether the incarnation that was started after the faults has all it needs.
pub fn reached(world: &World, since: usize) -> bool {
    let fresh = world.managers.iter().skip(since);
    let mut running = fresh.filter(|manager| manager.step == Step::Running);
    running.any(|manager| {
        let Some(primary) = manager.primary.and_then(|it| world.primaries.get(it)) else {
            return false;
        };
        // Beyond the record it began with.
        let committed = lsn(primary.acknowledged);
        let begin = manager.end().advance(manager.record.len() as u64);
        committed > begin
            && lsn(world.storage.wal.len()) > begin
            && world
                .stores
                .iter()
                .all(|store| store.timeline() == primary.timeline && store.flushed() > begin)
    })
}
