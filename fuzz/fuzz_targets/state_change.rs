//! An entry of cluster state of arbitrary bytes decodes or is refused; what decodes is written the same.

#![no_main]

use cluster_state::{EncodedChange, StateChange};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Option<&[u8]>)| {
    let (key, value) = input;
    if let Ok(change) = StateChange::decode(key, value) {
        let mut encoded = EncodedChange::default();
        change.encode(&mut encoded);
        assert_eq!(StateChange::decode(encoded.key(), encoded.value()).as_ref(), Ok(&change));
    }
});
