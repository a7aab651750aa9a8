//! Any bytes as a layer file: a description, with damage listed, or a typed error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use page_store::inspect;

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("layer-open-{}", std::process::id()));
    if std::fs::write(&path, bytes).is_ok() {
        if let Ok(description) = inspect::describe(&path) {
            assert_eq!(description.file_bytes, bytes.len() as u64);
        }
    }
});
