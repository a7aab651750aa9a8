//! Everything an application may do, with next to no memory.

use testkit::PgBinaries;

#[test]
fn tiny_memory_equals_stock_15() {
    let binaries = PgBinaries::find(15).expect("PostgreSQL 15");
    strandline_tests::tiny_memory::run(&binaries).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn tiny_memory_equals_stock_17() {
    let binaries = PgBinaries::find(17).expect("PostgreSQL 17");
    strandline_tests::tiny_memory::run(&binaries).unwrap_or_else(|error| panic!("{error:#}"));
}
