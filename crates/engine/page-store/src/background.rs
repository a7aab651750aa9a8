//! The store's threads: one writes frozen layers to files, one keeps chains short.
//!
//! They are two, so that making images never delays the layers that ingestion waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::error::DiskError;
use crate::materialise;
use crate::shared::Shared;

/// Starts the threads; they end when the store is closed.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, DiskError> {
    let writer = spawn(shared, "layer-writer", write_layers)?;
    let materialiser = spawn(shared, "materialiser", materialise::run)?;
    Ok(vec![writer, materialiser])
}

fn spawn(
    shared: &Arc<Shared>,
    name: &'static str,
    work: fn(&Arc<Shared>),
) -> Result<JoinHandle<()>, DiskError> {
    let its = Arc::clone(shared);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // A panicked worker poisons the store, like a failed write: what it should have made
            // durable is not.
            if catch_unwind(AssertUnwindSafe(|| work(&its))).is_err() {
                let cause = std::io::Error::other(format!("the thread {name} panicked"));
                its.fail(DiskError::new("write to", &its.dir, cause));
            }
        })
        .map_err(|source| DiskError::new("start a thread for", &shared.dir, source))
}

fn write_layers(shared: &Arc<Shared>) {
    let next = || {
        if shared.poison.get().is_some() {
            return None;
        }
        shared.layers().frozen.first().map(Arc::clone)
    };
    while let Some(frozen) = shared.progress.wait_for_work(next) {
        if let Err(error) = shared.write_frozen(&frozen) {
            shared.fail(error.into_disk_error(&shared.dir));
        }
    }
}
