//! Finding PostgreSQL and the page shim.

use std::path::{Path, PathBuf};

use compute::postgres::PostgresBinary;
use pg_types::PgMajor;

use crate::error::{Failure, Outcome};

/// Where Debian and its derivatives put each major's programs.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The directory of PostgreSQL's programs: the one given, or the newest supported one that can be
/// found, of `major` if the cluster exists already.
///
/// # Errors
/// [`Failure`] when there is none, or the one given does not fit.
pub fn find_postgres(
    given: Option<&Path>,
    remembered: Option<&Path>,
    major: Option<PgMajor>,
) -> Outcome<PostgresBinary> {
    if let Some(given) = given {
        let binary = PostgresBinary::find(given, major)?;
        return match major {
            Some(major) => Ok(binary.require(major)?),
            None => Ok(binary),
        };
    }
    let fits = |directory: &Path| {
        PostgresBinary::find(directory, major)
            .ok()
            .filter(|binary| major.is_none_or(|major| binary.major == major))
    };
    if let Some(binary) = remembered.and_then(fits) {
        return Ok(binary);
    }
    let mut majors = PgMajor::ALL;
    majors.reverse();
    let debian = majors
        .iter()
        .map(|major| Path::new(DEBIAN).join(major.to_string()).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = debian
        .chain(std::env::split_paths(&path))
        .find_map(|directory| fits(&directory));
    found.ok_or_else(|| {
        let wanted = major.map_or_else(|| "14 to 18".to_owned(), |major| major.to_string());
        Failure::new(format!(
            "no `postgres` of PostgreSQL {wanted} was found below {DEBIAN} or in PATH"
        ))
        .hint("install it (Debian: apt install postgresql), or name its directory with --pg-bin")
    })
}

/// The page shim that was built with this program.
///
/// # Errors
/// [`Failure`] when it is not beside the program.
pub fn find_shim() -> Outcome<PathBuf> {
    const NAME: &str = "libstrandline_shim.so";
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let candidates = [
        directory.join(NAME),
        directory.join("deps").join(NAME),
        directory.join("../lib/strandline").join(NAME),
    ];
    candidates
        .into_iter()
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Failure::new(format!(
                "{NAME} is neither beside {} nor in ../lib/strandline",
                program.display()
            ))
            .hint("build it (cargo build -p strandline-shim), or install it there")
        })
}
