//! Strandline's own lines in `pg_hba.conf` and `pg_ident.conf`.
//!
//! **Invariant.** The lines stand in a block between two markers, before everything else, and only
//! that block is ever rewritten: the user's own lines keep their text and their order. They admit
//! the replication role over the Unix socket, from the operating-system user that runs PostgreSQL,
//! and nobody else.

use std::io;
use std::path::Path;

use crate::layout::replace_file;

/// Role through which the log stores stream.
pub const REPLICATION_ROLE: &str = "strandline_replication";

/// Map in `pg_ident.conf` from the operating-system user.
const MAP: &str = "strandline";

const BEGIN: &str = "# strandline: begin (managed; changes between the markers are overwritten)";
const END: &str = "# strandline: end";

/// Who must be let in now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<'a> {
    /// Operating-system user that runs PostgreSQL and the log stores.
    pub os_user: &'a str,
    /// Let that user in as this superuser too: only while the replication role does not exist yet.
    pub superuser: Option<&'a str>,
}

/// Brings the managed blocks of both files up to date; says whether anything changed.
///
/// # Errors
/// The operating system's.
pub fn write_access(config: &Path, access: &Access<'_>) -> io::Result<bool> {
    let hba = update(&config.join("pg_hba.conf"), &hba_lines(access))?;
    let ident = update(&config.join("pg_ident.conf"), &ident_lines(access))?;
    Ok(hba || ident)
}

fn hba_lines(access: &Access<'_>) -> Vec<String> {
    let mut lines = vec![format!(
        "local replication {REPLICATION_ROLE} peer map={MAP}"
    )];
    if let Some(superuser) = access.superuser {
        lines.push(format!(
            "local template1 {} peer map={MAP}",
            quote(superuser)
        ));
    }
    lines
}

fn ident_lines(access: &Access<'_>) -> Vec<String> {
    let user = quote(access.os_user);
    let mut lines = vec![format!("{MAP} {user} {REPLICATION_ROLE}")];
    if let Some(superuser) = access.superuser {
        lines.push(format!("{MAP} {user} {}", quote(superuser)));
    }
    lines
}

/// Quoted for the files' tokenizer, in which a quote keeps keywords such as `all` from being special.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn update(path: &Path, lines: &[String]) -> io::Result<bool> {
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let new = with_block(&old, lines);
    if new == old {
        return Ok(false);
    }
    replace_file(path, new.as_bytes())?;
    Ok(true)
}

/// `text` with the managed block, at the top, holding `lines`.
fn with_block(text: &str, lines: &[String]) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        match line {
            BEGIN => inside = true,
            END if inside => inside = false,
            _ if inside => {}
            _ => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    format!("{BEGIN}\n{}\n{END}\n{rest}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access<'static> = Access {
        os_user: "pg-user",
        superuser: None,
    };

    #[test]
    fn the_users_lines_stay_and_ours_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let hba = dir.path().join("pg_hba.conf");
        std::fs::write(&hba, "# mine\nlocal all all md5\n").unwrap();
        assert!(write_access(dir.path(), &ACCESS).unwrap());
        let text = std::fs::read_to_string(&hba).unwrap();
        assert!(
            text.ends_with("# strandline: end\n# mine\nlocal all all md5\n"),
            "{text}"
        );
        assert!(text.contains("local replication strandline_replication peer map=strandline"));
        let ident = std::fs::read_to_string(dir.path().join("pg_ident.conf")).unwrap();
        assert!(
            ident.contains("strandline \"pg-user\" strandline_replication"),
            "{ident}"
        );
    }

    #[test]
    fn writing_twice_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write_access(dir.path(), &ACCESS).unwrap());
        assert!(!write_access(dir.path(), &ACCESS).unwrap());
    }

    #[test]
    fn the_superuser_is_let_in_only_while_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let bootstrap = Access {
            superuser: Some("odd \"name"),
            ..ACCESS
        };
        assert!(write_access(dir.path(), &bootstrap).unwrap());
        let hba = dir.path().join("pg_hba.conf");
        assert!(
            std::fs::read_to_string(&hba)
                .unwrap()
                .contains("local template1 \"odd \"\"name\" peer")
        );
        assert!(write_access(dir.path(), &ACCESS).unwrap());
        assert!(!std::fs::read_to_string(&hba).unwrap().contains("template1"));
    }
}
