//! What tests of several crates share: stock PostgreSQL servers to compare with.

pub mod cluster;
mod pg;
pub mod process;
pub mod random;

pub use pg::{OrdinaryUser, PgBinaries, StockServer};
