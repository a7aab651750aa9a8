//! Arbitrary text as a replication command.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_proto::ReplicationCommand;

fuzz_target!(|text: &str| {
    let _ = ReplicationCommand::parse(text);
});
