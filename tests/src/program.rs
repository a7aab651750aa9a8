//! Running the `strandline` program to its end, and what a refusal must look like: exit code 1, one
//! line that says what is wrong, and what to do about it; nothing on stdout.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::cluster::{Cluster, binary};
use testkit::process;

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// No command of these tests takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// `strandline` with `arguments`, to its end.
///
/// # Errors
/// When it is not built or does not end.
pub fn strandline(arguments: &[&str]) -> Result<Ended> {
    to_end(Command::new(binary()?).args(arguments))
}

/// A command about `cluster`: `--data` is added.
///
/// # Errors
/// As [`strandline`].
pub fn about(cluster: &Cluster, arguments: &[&str]) -> Result<Ended> {
    to_end(
        Command::new(binary()?)
            .args(arguments)
            .arg("--data")
            .arg(cluster.data()),
    )
}

/// A command about `cluster` that must succeed; its stdout.
///
/// # Errors
/// When it fails.
pub fn done(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let ended = about(cluster, arguments)?;
    ensure!(ended.status.success(), "{arguments:?}: {ended:?}");
    Ok(ended.stdout)
}

/// `strandline import --from` into `cluster`'s directory.
///
/// # Errors
/// When the binary is not built.
pub fn import_command(cluster: &Cluster, from: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command
        .arg("import")
        .arg("--from")
        .arg(from)
        .arg("--data")
        .arg(cluster.data())
        .arg("--pg-bin")
        .arg(cluster.pg_bin());
    Ok(command)
}

/// Runs `command` to its end, with everything it wrote.
///
/// # Errors
/// When it cannot be started or runs for two minutes; then it and all its children are killed.
pub fn to_end(command: &mut Command) -> Result<Ended> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| shown.clone())?;
    let stdout = collect(child.stdout.take().context("stdout is piped")?);
    let stderr = collect(child.stderr.take().context("stderr is piped")?);
    let waited = wait(&mut child, PATIENCE);
    if waited.is_err() {
        for (one, _) in process::family(child.id()) {
            process::signal(one.pid, libc::SIGKILL);
        }
        child.wait()?;
    }
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    match waited {
        Ok(status) => Ok(Ended {
            status,
            stdout,
            stderr,
        }),
        Err(error) => Err(error.context(format!("{shown}\n{stdout}\n{stderr}"))),
    }
}

/// Waits for a child to end.
///
/// # Errors
/// When it runs longer than `patience`.
pub fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            bail!("it did not end within {} s", patience.as_secs());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Ended {
    /// Checks that it refused as a command must: exit code 1, nothing on stdout, one line
    /// `strandline: …` with every text of `says`, and a remedy with every text of `remedy` in a line
    /// `hint: …`.
    ///
    /// # Errors
    /// What is missing, with all it wrote.
    pub fn refused(&self, says: &[&str], remedy: &[&str]) -> Result<()> {
        ensure!(
            self.status.code() == Some(1),
            "exit code is not 1: {self:?}"
        );
        ensure!(self.stdout.is_empty(), "a refusal printed data: {self:?}");
        let line = |start: &str| {
            self.stderr
                .lines()
                .rfind(|line| line.starts_with(start))
                .with_context(|| format!("no line begins with {start:?}: {self:?}"))
        };
        let message = line("strandline: ")?;
        for text in says {
            ensure!(
                message.contains(text),
                "the message lacks {text:?}: {self:?}"
            );
        }
        let hint = line("hint: ")?;
        for text in remedy {
            ensure!(hint.contains(text), "the hint lacks {text:?}: {self:?}");
        }
        Ok(())
    }
}
