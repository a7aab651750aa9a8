//! Where a cluster's first data directory and configuration come from: `initdb`, or a stopped stock
//! cluster.
//!
//! **Invariant.** The source of an import is only read. What is copied are the configuration files a
//! user edits; settings that name places of the old machine are overridden when the server is
//! started, never edited.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pg_page::RelationMap;
use pg_page::heap_tuple::{HeapTupleHeader, XMAX_INVALID};
use pg_page::item::{ItemState, item_bytes, items};
use pg_page::relation_map::RELATION_MAP_FILE_NAME;
use pg_types::{BLCKSZ, Oid, PgMajor};

/// Why a source could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb failed: {message}")]
    Initdb {
        /// What it printed last.
        message: String,
    },
    /// The configuration includes other files.
    #[error(
        "{} includes other files with \"{line}\", which would not be there (hint: put their settings into postgresql.conf itself, then import again)",
        path.display()
    )]
    Include {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// The bootstrap superuser is not in `pg_authid`.
    #[error("{} has no role with OID 10, the bootstrap superuser", path.display())]
    NoSuperuser {
        /// The file of `pg_authid`.
        path: PathBuf,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> SourceError + '_ {
    move |source| SourceError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Makes a stock cluster in `pgdata` with superuser `postgres`, encoding UTF-8, authentication
/// `trust` for local connections, and the locale of the environment if that is a UTF-8 one.
///
/// # Errors
/// [`SourceError::Initdb`] with what `initdb` printed.
pub fn initdb(pg_bin: &Path, pgdata: &Path) -> Result<(), SourceError> {
    let mut locales = vec!["C.UTF-8".to_owned(), "C".to_owned()];
    if let Some(locale) = environment_locale() {
        locales.insert(0, locale);
    }
    let mut message = String::new();
    for locale in locales {
        let output = run_initdb(pg_bin, pgdata, &locale)?;
        if output.status.success() {
            return Ok(());
        }
        message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !message.contains("locale") {
            break;
        }
    }
    Err(SourceError::Initdb {
        message: message.lines().last().unwrap_or_default().to_owned(),
    })
}

fn run_initdb(pg_bin: &Path, pgdata: &Path, locale: &str) -> Result<Output, SourceError> {
    let path = pg_bin.join("initdb");
    Command::new(&path)
        .arg("-D")
        .arg(pgdata)
        .args([
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--no-sync",
            "--no-instructions",
        ])
        .args(["--auth-local=trust", "--auth-host=trust"])
        .arg(format!("--locale={locale}"))
        .env_remove("PGDATA")
        .env_remove("LC_ALL")
        .stdin(Stdio::null())
        .output()
        .map_err(io_at(&path))
}

fn environment_locale() -> Option<String> {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .filter(|value| {
            let value = value.to_ascii_lowercase();
            value.ends_with("utf-8") || value.ends_with("utf8")
        })
}

/// Copies the configuration files of a stock cluster to `config`; returns warnings for the user.
///
/// Debian keeps them in `/etc/postgresql/<version>/<name>` rather than in the data directory.
///
/// # Errors
/// [`SourceError`]; `Include` when the configuration is spread over files that would be missing.
pub fn copy_configuration(pgdata: &Path, config: &Path) -> Result<Vec<String>, SourceError> {
    let mut warnings = Vec::new();
    fs::create_dir_all(config).map_err(io_at(config))?;
    let source = configuration_directory(pgdata);
    if let Some(source) = &source {
        for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
            let from = source.join(name);
            let text = match fs::read(&from) {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                Err(error) => return Err(io_at(&from)(error)),
            };
            let text = without_empty_includes(&from, source, &text, &mut warnings)?;
            write(&config.join(name), &text)?;
        }
    } else {
        warnings.push(format!(
            "{} has no postgresql.conf; default settings are used, and passwords are asked for over TCP",
            pgdata.display()
        ));
        write(&config.join("postgresql.conf"), "# PostgreSQL's defaults\n")?;
        write(
            &config.join("pg_hba.conf"),
            "local all all peer\nhost all all all scram-sha-256\n",
        )?;
        write(&config.join("pg_ident.conf"), "")?;
    }
    let auto = pgdata.join("postgresql.auto.conf");
    match fs::read_to_string(&auto) {
        Ok(text) => write(&config.join("postgresql.auto.conf"), &text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_at(&auto)(error)),
    }
    Ok(warnings)
}

/// Lets clients from elsewhere in with a password: they reach the server only if it listens there.
///
/// # Errors
/// [`SourceError::Io`].
pub fn allow_passwords_from_elsewhere(config: &Path) -> Result<(), SourceError> {
    let path = config.join("pg_hba.conf");
    let mut text = fs::read_to_string(&path).map_err(io_at(&path))?;
    text.push_str("\n# Clients on other machines, once --listen lets them connect.\nhost all all all scram-sha-256\n");
    write(&path, &text)
}

fn configuration_directory(pgdata: &Path) -> Option<PathBuf> {
    if pgdata.join("postgresql.conf").is_file() {
        return Some(pgdata.to_owned());
    }
    let name = pgdata.file_name()?;
    let version = pgdata.parent()?.file_name()?;
    let debian = Path::new("/etc/postgresql").join(version).join(name);
    debian.join("postgresql.conf").is_file().then_some(debian)
}

/// Comments out includes of nothing; refuses includes of something.
fn without_empty_includes(
    path: &Path,
    directory: &Path,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<String, SourceError> {
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        if let Some(target) = included(line) {
            if has_content(&directory.join(target)) {
                return Err(SourceError::Include {
                    path: path.to_owned(),
                    line: line.trim().to_owned(),
                });
            }
            warnings.push(format!(
                "\"{}\" includes nothing and was left out",
                line.trim()
            ));
            kept.push_str("# left out, included nothing: ");
        }
        kept.push_str(line);
        kept.push('\n');
    }
    Ok(kept)
}

/// What an include directive of `postgresql.conf` names.
fn included(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = ["include_if_exists", "include_dir", "include"]
        .into_iter()
        .find_map(|word| line.strip_prefix(word))?;
    if !rest.starts_with([' ', '\t', '=', '\'']) {
        return None;
    }
    let rest = rest.trim_start_matches([' ', '\t', '=']);
    let name = rest
        .strip_prefix('\'')
        .and_then(|quoted| quoted.split('\'').next());
    name.or_else(|| rest.split_whitespace().next())
}

fn has_content(path: &Path) -> bool {
    if path.is_file() {
        return true;
    }
    fs::read_dir(path).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "conf")
        })
    })
}

fn write(path: &Path, text: &str) -> Result<(), SourceError> {
    crate::layout::replace_file(path, text.as_bytes()).map_err(io_at(path))
}

/// OID of `pg_authid`.
const PG_AUTHID: Oid = 1260;
/// OID of the role that initdb makes (`BOOTSTRAP_SUPERUSERID`).
const BOOTSTRAP_SUPERUSER: Oid = 10;
/// `NAMEDATALEN`.
const NAME_LEN: usize = 64;

/// Name of the bootstrap superuser of a stopped stock cluster, read from `pg_authid`: its first two
/// columns are the OID and the name, both of fixed length.
///
/// # Errors
/// [`SourceError`].
pub fn bootstrap_superuser(pgdata: &Path, major: PgMajor) -> Result<String, SourceError> {
    let map_path = pgdata.join("global").join(RELATION_MAP_FILE_NAME);
    let map = fs::read(&map_path).map_err(io_at(&map_path))?;
    let file = RelationMap::decode(&map, major)
        .ok()
        .and_then(|map| map.get(PG_AUTHID));
    let path = pgdata
        .join("global")
        .join(file.unwrap_or(PG_AUTHID).to_string());
    let bytes = fs::read(&path).map_err(io_at(&path))?;
    let mut found = None;
    for page in bytes.chunks_exact(BLCKSZ) {
        let Some(page) = page.first_chunk::<BLCKSZ>() else {
            continue;
        };
        for (_, item) in items(page) {
            if item.state() != ItemState::Normal {
                continue;
            }
            let Some((header, name)) = item_bytes(page, item).and_then(role_name) else {
                continue;
            };
            let live = header.xmax == 0 || header.infomask & XMAX_INVALID != 0;
            if live || found.is_none() {
                found = Some(name);
            }
        }
    }
    found.ok_or(SourceError::NoSuperuser { path })
}

fn role_name(tuple: &[u8]) -> Option<(HeapTupleHeader, String)> {
    let header = HeapTupleHeader::read(tuple)?;
    let data = tuple.get(usize::from(header.header_len)..)?;
    let (oid, rest) = data.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*oid) != BOOTSTRAP_SUPERUSER {
        return None;
    }
    let name = rest.get(..NAME_LEN)?.split(|byte| *byte == 0).next()?;
    Some((header, String::from_utf8_lossy(name).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn include_directives_are_found() {
        assert_eq!(included("include_dir = 'conf.d'   # x"), Some("conf.d"));
        assert_eq!(included("  include 'a b.conf'"), Some("a b.conf"));
        assert_eq!(included("include_if_exists other.conf"), Some("other.conf"));
        assert_eq!(included("#include 'x'"), None);
        assert_eq!(included("includes = 3"), None);
    }

    #[test]
    fn included_settings_are_not_lost_silently() {
        let dir = tempfile::tempdir().unwrap();
        let pgdata = dir.path().join("pgdata");
        fs::create_dir_all(pgdata.join("conf.d")).unwrap();
        let conf = pgdata.join("postgresql.conf");
        fs::write(&conf, "port = 1\ninclude_dir 'conf.d'\n").unwrap();
        let config = dir.path().join("config");
        let warnings = copy_configuration(&pgdata, &config).unwrap();
        assert_eq!(warnings.len(), 1);
        let kept = fs::read_to_string(config.join("postgresql.conf")).unwrap();
        assert_eq!(
            kept,
            "port = 1\n# left out, included nothing: include_dir 'conf.d'\n"
        );
        fs::write(pgdata.join("conf.d/a.conf"), "work_mem = 1GB\n").unwrap();
        assert!(matches!(
            copy_configuration(&pgdata, &config),
            Err(SourceError::Include { .. })
        ));
    }
}
