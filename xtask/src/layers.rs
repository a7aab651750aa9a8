//! Directory = layer: format, protocol, substrate, engine, service, lowest first.
//!
//! The invariant keeps pure code pure: nothing under `format/` or `protocol/` can reach a socket, so
//! it can be fuzzed and simulated; nothing but the binary can reach the page shim, so nothing but
//! `libc` is ever loaded into PostgreSQL.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Layers, lowest first.
const LAYERS: [&str; 5] = ["format", "protocol", "substrate", "engine", "service"];

/// Crates of one layer that may depend on each other, and why no others.
pub const SIBLINGS: &[(&str, &[&str])] = &[
    ("pg-page", &["pg-types"]),
    ("pg-wal", &["pg-types"]),
    ("pg-proto", &["pg-types"]),
    ("pg-redo", &["pg-types", "pg-page", "pg-wal"]),
    ("page-server", &["api"]),
    ("log-server", &["api"]),
    ("compute", &["api"]),
    (
        "strandline",
        &["api", "page-server", "log-server", "compute"],
    ),
];

/// The only dependencies of what is loaded into PostgreSQL.
const SHIM: &[(&str, &[&str])] = &[
    ("strandline-shim", &["shim-abi", "libc"]),
    ("shim-abi", &["libc"]),
];

struct Crate {
    layer: usize,
    dependencies: Vec<String>,
}

/// Reads every manifest under `crates/` and checks its dependencies.
///
/// # Errors
/// Names the first crate and dependency that break a rule.
pub fn check(root: &Path) -> Result<()> {
    let crates = read_crates(root)?;
    let mut edges = 0;
    for (name, this) in &crates {
        for dependency in &this.dependencies {
            if let Some((_, allowed)) = SHIM.iter().find(|(shim, _)| shim == name)
                && !allowed.contains(&dependency.as_str())
            {
                bail!(
                    "{name} is loaded into PostgreSQL and may use only {allowed:?}, not {dependency}"
                );
            }
            let Some(other) = crates.get(dependency) else {
                continue;
            };
            edges += 1;
            if dependency == "strandline-shim" {
                bail!("{name} depends on the page shim; only PostgreSQL loads it");
            }
            if other.layer < this.layer {
                continue;
            }
            let sibling = other.layer == this.layer
                && SIBLINGS
                    .iter()
                    .any(|(from, to)| from == name && to.contains(&dependency.as_str()));
            if !sibling {
                bail!(
                    "{name} ({}) must not depend on {dependency} ({}): see crates' order in xtask/src/layers.rs",
                    LAYERS[this.layer],
                    LAYERS[other.layer],
                );
            }
        }
    }
    println!(
        "layers: {} crates, {edges} dependencies between them, all downwards",
        crates.len()
    );
    Ok(())
}

fn read_crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let mut crates = BTreeMap::new();
    for (layer, directory) in LAYERS.iter().enumerate() {
        let directory = root.join("crates").join(directory);
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let manifest = entry?.path().join("Cargo.toml");
            let text =
                fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
            let table: toml::Table = text
                .parse()
                .with_context(|| manifest.display().to_string())?;
            let name = table
                .get("package")
                .and_then(|package| package.get("name"))
                .and_then(|name| name.as_str())
                .with_context(|| format!("{} has no package name", manifest.display()))?
                .to_owned();
            // Development dependencies are exempt: a test may hold a lower layer against a higher one.
            let dependencies = table
                .get("dependencies")
                .and_then(|dependencies| dependencies.as_table())
                .map(|dependencies| dependencies.keys().cloned().collect())
                .unwrap_or_default();
            crates.insert(
                name,
                Crate {
                    layer,
                    dependencies,
                },
            );
        }
    }
    Ok(crates)
}
