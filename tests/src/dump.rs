//! A database's whole contents as text, for comparing two servers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::PgBinaries;

/// Where a server listens.
#[derive(Debug, Clone)]
pub struct Address {
    /// Host name or directory of the Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Address {
    /// TCP on the loopback.
    #[must_use]
    pub fn local(port: u16) -> Address {
        Address {
            host: "127.0.0.1".to_owned(),
            port,
        }
    }

    /// A client program of `binaries` (or of 15) that connects to `database` here.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn client(&self, binaries: &PgBinaries, program: &str, database: &str) -> Result<Command> {
        let mut command = Command::new(binaries.program(program)?);
        command
            .env("PGHOST", &self.host)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", database)
            .env("PGOPTIONS", "-c client_min_messages=warning");
        Ok(command)
    }
}

/// Runs a command and returns what it prints.
///
/// # Errors
/// When it fails; the error has what it wrote to stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a script with psql.
///
/// # Errors
/// At the first statement that fails.
pub fn script(
    address: &Address,
    binaries: &PgBinaries,
    database: &str,
    file: &Path,
    variables: &[(&str, &str)],
) -> Result<String> {
    let mut psql = address.client(binaries, "psql", database)?;
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
    for (name, value) in variables {
        psql.arg("-v").arg(format!("{name}={value}"));
    }
    output(psql.arg("-f").arg(file))
}

/// The contents of `database`: `pg_dump`'s output where a `pg_dump` of the server's major is at hand,
/// else every table's rows read through psql. Rows of a table are sorted: their order is not part of
/// what a database promises. Positions of sequences are left out: PostgreSQL logs up to 32 values
/// ahead, so over a crash a sequence may skip some, on stock as here.
///
/// # Errors
/// When the server cannot be read.
pub fn database(address: &Address, binaries: &PgBinaries, database: &str) -> Result<String> {
    if binaries.directory().join("pg_dump").is_file() {
        let mut dump = address.client(binaries, "pg_dump", database)?;
        // An unlogged table is empty after a restart, in stock as here, and only one side restarted.
        return Ok(sort_copies(&output(
            dump.args(["--no-comments", "--no-unlogged-table-data"]),
        )?));
    }
    let tables = query(
        address,
        binaries,
        database,
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
    )?;
    let mut text = query(
        address,
        binaries,
        database,
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid > 16384 AND indrelid::regclass::text NOT LIKE 'pg_toast%' ORDER BY 1",
    )?;
    text.push_str(&query(
        address,
        binaries,
        database,
        "SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute \
         WHERE attrelid > 16384 AND attnum > 0 AND attrelid::regclass::text NOT LIKE 'pg_toast%' ORDER BY attrelid::regclass::text, attnum",
    )?);
    for table in tables.lines() {
        text.push_str(&format!("\n-- {table}\n"));
        let rows = format!("SELECT t::text FROM {table} t ORDER BY 1");
        text.push_str(&query(address, binaries, database, &rows)?);
    }
    Ok(text)
}

fn query(address: &Address, binaries: &PgBinaries, database: &str, sql: &str) -> Result<String> {
    output(
        address
            .client(binaries, "psql", database)?
            .args(["-X", "-A", "-t", "-c", sql]),
    )
}

/// Sorts the rows of each `COPY … FROM stdin` block.
fn sort_copies(dump: &str) -> String {
    let mut out = Vec::new();
    let mut rows: Option<Vec<&str>> = None;
    for line in dump.lines() {
        match &mut rows {
            Some(block) if line == "\\." => {
                block.sort_unstable();
                out.append(block);
                out.push(line);
                rows = None;
            }
            Some(block) => block.push(line),
            None => {
                // Newer minors wrap a dump in \restrict with a random key.
                let noise = ["\\restrict", "\\unrestrict", "SELECT pg_catalog.setval("];
                if noise.iter().any(|start| line.starts_with(start)) {
                    continue;
                }
                out.push(line);
                if line.starts_with("COPY ") && line.ends_with("FROM stdin;") {
                    rows = Some(Vec::new());
                }
            }
        }
    }
    out.join("\n")
}

/// The first lines in which two texts differ, for an error message; `None` when they are equal.
#[must_use]
pub fn difference(ours: &str, theirs: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.lines().collect(), theirs.lines().collect());
    let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let show = |lines: &[&str]| -> String {
        lines
            .iter()
            .skip(at)
            .take(5)
            .map(|line| line.chars().take(200).collect::<String>() + "\n")
            .collect()
    };
    Some(format!(
        "line {} of {} and {}:\n--- strandline\n{}--- stock\n{}",
        at + 1,
        ours.len(),
        theirs.len(),
        show(&ours),
        show(&theirs)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_the_rest_is_left_alone() {
        let dump = "SET a;\n\\restrict x\nCOPY t (a) FROM stdin;\nb\na\n\\.\nSELECT 1;";
        assert_eq!(
            sort_copies(dump),
            "SET a;\nCOPY t (a) FROM stdin;\na\nb\n\\.\nSELECT 1;"
        );
        assert!(difference("a\nb", "a\nc").is_some());
        assert!(difference("a", "a").is_none());
    }
}
