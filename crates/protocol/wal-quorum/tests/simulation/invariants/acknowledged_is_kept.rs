//! An acknowledged LSN is never lost (DESIGN invariant 1): what any primary acknowledged is a prefix
//! of the WAL of every later primary.

use crate::world::World;

pub fn check(world: &World) -> Result<(), String> {
    for (index, primary) in world.primaries.iter().enumerate() {
        let acknowledged = primary.acknowledged.0 as usize;
        for later in world.primaries.iter().skip(index + 1) {
            let kept = later.wal.get(..acknowledged) == primary.wal.get(..acknowledged);
            if !kept {
                return Err(format!(
                    "timeline {} acknowledged {acknowledged}, timeline {} does not have it",
                    primary.timeline, later.timeline
                ));
            }
        }
    }
    Ok(())
}
