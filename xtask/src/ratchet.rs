//! Source files stay short enough to read: one concept a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Lines of code (no blanks, no comments, nothing from `mod tests` on) a file may have.
const LIMIT: usize = 600;

/// Checks every Rust file of the workspace.
///
/// # Errors
/// Lists the files that are too long.
pub fn check(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for directory in ["crates", "testkit", "xtask", "bench", "tests", "fuzz"] {
        let directory = root.join(directory);
        if directory.is_dir() {
            collect(&directory, &mut files)?;
        }
    }
    let mut too_long = Vec::new();
    for file in &files {
        let lines =
            code_lines(&fs::read_to_string(file).with_context(|| file.display().to_string())?);
        if lines > LIMIT {
            let shown = file.strip_prefix(root).unwrap_or(file);
            too_long.push(format!("{} has {lines} lines of code", shown.display()));
        }
    }
    if !too_long.is_empty() {
        bail!(
            "files over {LIMIT} lines of code:\n  {}",
            too_long.join("\n  ")
        );
    }
    println!(
        "ratchet: {} files, none over {LIMIT} lines of code",
        files.len()
    );
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn code_lines(text: &str) -> usize {
    text.lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("mod tests"))
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::code_lines;

    #[test]
    fn only_code_counts() {
        assert_eq!(
            code_lines("//! doc\n\nfn a() {}\n// why\nfn b() {}\nmod tests {\nfn c() {}\n"),
            2
        );
    }
}
