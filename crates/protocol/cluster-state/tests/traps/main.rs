//! Traps that others fell into (`traps.md` of the facts), as far as they concern state that is not in
//! pages. Each test is named after its row.

#![allow(
    clippy::expect_used,
    reason = "a helper of tests that fails is a failed test"
)]

mod cluster;
mod files;
mod transactions;
