//! Small file systems for tests of what happens when one is full.
//!
//! A test that mounts something runs again in a mount namespace of its own ([`in_own_namespace`]), so
//! nothing is left mounted whatever happens, and an ordinary user may do it too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::OrdinaryUser;

use crate::dump::output;

const INSIDE: &str = "STRANDLINE_OWN_MOUNTS";

/// Runs `claim` in a mount namespace of its own: this process runs the test named `test` once more, in
/// there, and waits for it.
///
/// # Errors
/// What the test in there found, or that the kernel does not allow a mount namespace.
pub fn in_own_namespace(test: &str, claim: impl FnOnce() -> Result<()>) -> Result<()> {
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        return claim();
    }
    // What lies below a mount can only be removed from out here, once the namespace is gone.
    let directory = tempfile::Builder::new().prefix("strandline-").tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !is_root()? {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command
        .arg(std::env::current_exe()?)
        .args([test, "--exact", "--nocapture"])
        .env("TMPDIR", directory.path())
        .env(INSIDE, test);
    let said = output(&mut command).context(
        "in a mount namespace of its own (root, or an ordinary user who may make user namespaces)",
    )?;
    ensure!(said.contains("1 passed"), "no test is named {test}: {said}");
    Ok(())
}

fn is_root() -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// Puts a file system of `megabytes` at `directory`, with what is in `directory` in it. Whoever owned
/// `directory` owns it.
///
/// # Errors
/// When it cannot be mounted, or what is there does not fit.
pub fn small(directory: &Path, megabytes: u32) -> Result<()> {
    let aside = directory.with_extension("before");
    fs::rename(directory, &aside)?;
    fs::create_dir(directory)?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o"]);
    output(
        mount
            .arg(format!("size={megabytes}m,mode=0700"))
            .arg("tmpfs")
            .arg(directory),
    )?;
    OrdinaryUser::current()?.own(directory)?;
    output(
        Command::new("cp")
            .arg("-a")
            .arg(aside.join("."))
            .arg(directory),
    )?;
    fs::remove_dir_all(&aside)?;
    Ok(())
}

/// Makes the file system at `directory` larger or smaller.
///
/// # Errors
/// When the kernel refuses.
pub fn resize(directory: &Path, megabytes: u32) -> Result<()> {
    let mut mount = Command::new("mount");
    output(
        mount
            .arg("-o")
            .arg(format!("remount,size={megabytes}m"))
            .arg(directory),
    )?;
    Ok(())
}
