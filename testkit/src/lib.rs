//! What tests of several crates share: stock PostgreSQL servers to compare with.

mod pg;

pub use pg::{OrdinaryUser, PgBinaries, StockServer};
