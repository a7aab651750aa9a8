//! Everything a PostgreSQL data directory holds besides pages, at every LSN.

mod skeleton;

pub use skeleton::{DatabaseDir, RelationSize, RelationMap, Skeleton, SlruRange, Tablespace, TwoPhaseFile};
