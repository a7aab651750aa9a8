//! strandline
fn main() {}
