//! Traps that others fell into (`traps.md` of the facts), as far as they concern state that is not in
//! pages. Each test is named after its row.

mod cluster;
mod files;
mod transactions;
