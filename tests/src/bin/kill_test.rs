//! kill-test
fn main() {}
