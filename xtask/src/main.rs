//! Checks of the workspace that neither rustc nor clippy makes.
//!
//! `cargo xtask layers` — a crate depends only on directories below its own and on the siblings that
//! [`layers::SIBLINGS`] names. `cargo xtask ratchet` — no source file grows past its limit.
//! `cargo xtask all` runs both.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod layers;
mod ratchet;

fn main() -> ExitCode {
    let root = workspace_root();
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "layers" => layers::check(&root),
        "ratchet" => ratchet::check(&root),
        "all" => layers::check(&root).and_then(|()| ratchet::check(&root)),
        _ => {
            eprintln!("usage: cargo xtask layers|ratchet|all");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
