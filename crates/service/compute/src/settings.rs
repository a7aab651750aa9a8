//! The settings PostgreSQL is started with.
//!
//! **Invariant.** Every setting that durability or the page shim rests on is given on the command
//! line, which beats `postgresql.conf` and `ALTER SYSTEM`. If `synchronous_standby_names` could be
//! emptied by an `ALTER SYSTEM`, commits would be acknowledged that no log store has.
//!
//! What must hold and why:
//!
//! - `fsync=off`, `full_page_writes=off`: the local disk is a cache that is never recovered from.
//! - `restart_after_crash=off`: recovery in place would expose commits no quorum has.
//! - `synchronous_standby_names`: the log stores are the synchronous standbys.
//! - `wal_level`, `max_wal_senders`, `max_replication_slots`: at least what streaming to them needs.
//! - `wal_consistency_checking`: images for the resource managers that have no redo of their own yet.
//! - `io_method`, `debug_io_direct`, `file_copy_method`: file access must go through libc, where the
//!   shim sees it.

use std::path::Path;

use pg_types::PgMajor;

/// Resource managers whose pages are rebuilt from post-images.
pub const IMAGE_REDO: [&str; 5] = ["gin", "gist", "spgist", "hash", "brin"];

/// Least number of WAL senders and slots: three log stores with a reconnection each, and room for
/// the user's own.
const MIN_SENDERS: u32 = 10;

/// What the user's configuration says about settings that are merged rather than overridden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSettings {
    /// `wal_level`.
    pub wal_level: Option<String>,
    /// `max_wal_senders`.
    pub max_wal_senders: Option<u32>,
    /// `max_replication_slots`.
    pub max_replication_slots: Option<u32>,
    /// `wal_consistency_checking`.
    pub wal_consistency_checking: Option<String>,
    /// `io_method` (18).
    pub io_method: Option<String>,
}

/// What the settings of an incarnation depend on.
#[derive(Debug, Clone, Copy)]
pub struct ServerFacts<'a> {
    /// Major of the cluster.
    pub major: PgMajor,
    /// The data directory that has been built.
    pub pgdata: &'a Path,
    /// Directory of the configuration files.
    pub config: &'a Path,
    /// Directory for the Unix socket.
    pub run: &'a Path,
    /// `listen_addresses`.
    pub listen_host: &'a str,
    /// Port.
    pub listen_port: u16,
    /// Names of the log stores.
    pub log_stores: &'a [String],
    /// How many of them must have a commit.
    pub quorum: usize,
    /// `wal_log_hints` of the control file.
    pub wal_log_hints: bool,
}

/// A setting of the user's that Strandline cannot run with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// io_uring reads files without libc, past the page shim.
    #[error(
        "io_method = {value} in the configuration bypasses the page shim (hint: set io_method to worker or sync)"
    )]
    IoMethod {
        /// The configured value.
        value: String,
    },
}

/// The settings of an incarnation, in the order they go on the command line.
///
/// # Errors
/// [`SettingsError`] when the user asked for something that cannot work.
pub fn server_settings(
    facts: &ServerFacts<'_>,
    user: &UserSettings,
) -> Result<Vec<(String, String)>, SettingsError> {
    let mut settings: Vec<(String, String)> = Vec::with_capacity(32);
    let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
    let path = |path: &Path| path.display().to_string();
    set("data_directory", path(facts.pgdata));
    set("hba_file", path(&facts.config.join("pg_hba.conf")));
    set("ident_file", path(&facts.config.join("pg_ident.conf")));
    // Debian's configuration names a place of its own; an empty name would be taken for a file's.
    set(
        "external_pid_file",
        path(&facts.pgdata.with_file_name("external.pid")),
    );
    set("listen_addresses", facts.listen_host.to_owned());
    set("port", facts.listen_port.to_string());
    set("unix_socket_directories", quote_list_item(&path(facts.run)));
    // The data directory is thrown away; what is logged must not be.
    set("logging_collector", "off".to_owned());

    set("fsync", "off".to_owned());
    set("full_page_writes", "off".to_owned());
    set("restart_after_crash", "off".to_owned());
    set("hot_standby", "on".to_owned());
    set("wal_log_hints", on_off(facts.wal_log_hints));
    set("wal_level", wal_level(user).to_owned());
    set(
        "max_wal_senders",
        at_least(user.max_wal_senders).to_string(),
    );
    set(
        "max_replication_slots",
        at_least(user.max_replication_slots).to_string(),
    );
    set(
        "synchronous_standby_names",
        standby_names(facts.quorum, facts.log_stores),
    );
    set(
        "wal_consistency_checking",
        image_redo(user.wal_consistency_checking.as_deref()),
    );
    // A slot that is cut off would lose WAL that a log store still needs.
    set("max_slot_wal_keep_size", "-1".to_owned());
    if facts.major >= PgMajor::V15 {
        set("recovery_prefetch", "off".to_owned());
    }
    if facts.major >= PgMajor::V16 {
        set("debug_io_direct", String::new());
    }
    if facts.major >= PgMajor::V18 {
        set("io_method", io_method(user)?);
        set("file_copy_method", "copy".to_owned());
        set("idle_replication_slot_timeout", "0".to_owned());
    }
    Ok(settings)
}

/// `ANY q ("a", "b")`.
fn standby_names(quorum: usize, log_stores: &[String]) -> String {
    let names: Vec<String> = log_stores
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect();
    format!("ANY {quorum} ({})", names.join(", "))
}

fn wal_level(user: &UserSettings) -> &'static str {
    match user.wal_level.as_deref() {
        Some("logical") => "logical",
        _ => "replica",
    }
}

fn at_least(configured: Option<u32>) -> u32 {
    configured.unwrap_or(MIN_SENDERS).max(MIN_SENDERS)
}

/// The resource managers the user asked for, and ours.
fn image_redo(configured: Option<&str>) -> String {
    let configured = configured.unwrap_or_default();
    let mut names: Vec<&str> = configured
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if names.iter().any(|name| name.eq_ignore_ascii_case("all")) {
        return "all".to_owned();
    }
    for name in IMAGE_REDO {
        if !names
            .iter()
            .any(|present| present.eq_ignore_ascii_case(name))
        {
            names.push(name);
        }
    }
    names.join(",")
}

fn io_method(user: &UserSettings) -> Result<String, SettingsError> {
    match user.io_method.as_deref() {
        None => Ok("worker".to_owned()),
        Some(value @ ("worker" | "sync")) => Ok(value.to_owned()),
        Some(value) => Err(SettingsError::IoMethod {
            value: value.to_owned(),
        }),
    }
}

fn on_off(value: bool) -> String {
    if value { "on" } else { "off" }.to_owned()
}

/// An item of a list setting, quoted so that commas and spaces in it stay part of it.
fn quote_list_item(item: &str) -> String {
    format!("\"{}\"", item.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
        settings
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn settings(
        major: PgMajor,
        user: &UserSettings,
    ) -> Result<Vec<(String, String)>, SettingsError> {
        let log_stores: Vec<String> = (0..3).map(crate::layout::log_store_name).collect();
        server_settings(
            &ServerFacts {
                major,
                pgdata: Path::new("/d/compute/pgdata"),
                config: Path::new("/d/config"),
                run: Path::new("/d/run"),
                listen_host: "127.0.0.1",
                listen_port: 5433,
                log_stores: &log_stores,
                quorum: 2,
                wal_log_hints: false,
            },
            user,
        )
    }

    #[test]
    fn what_durability_rests_on_is_always_there() {
        for major in PgMajor::ALL {
            let all = settings(major, &UserSettings::default()).unwrap();
            assert_eq!(value(&all, "restart_after_crash"), Some("off"));
            assert_eq!(
                value(&all, "synchronous_standby_names"),
                Some("ANY 2 (\"strandline_log_0\", \"strandline_log_1\", \"strandline_log_2\")")
            );
            assert_eq!(value(&all, "wal_level"), Some("replica"));
            assert_eq!(value(&all, "synchronous_commit"), None, "left to the user");
        }
    }

    #[test]
    fn the_users_larger_values_stay() {
        let user = UserSettings {
            wal_level: Some("logical".to_owned()),
            max_wal_senders: Some(40),
            max_replication_slots: Some(2),
            wal_consistency_checking: Some("heap, GIN".to_owned()),
            io_method: None,
        };
        let all = settings(PgMajor::V15, &user).unwrap();
        assert_eq!(value(&all, "wal_level"), Some("logical"));
        assert_eq!(value(&all, "max_wal_senders"), Some("40"));
        assert_eq!(value(&all, "max_replication_slots"), Some("10"));
        assert_eq!(
            value(&all, "wal_consistency_checking"),
            Some("heap,GIN,gist,spgist,hash,brin")
        );
        let minimal = UserSettings {
            wal_level: Some("minimal".to_owned()),
            ..user
        };
        assert_eq!(
            value(&settings(PgMajor::V15, &minimal).unwrap(), "wal_level"),
            Some("replica")
        );
    }

    #[test]
    fn settings_of_later_majors_are_not_given_to_earlier_ones() {
        let fourteen = settings(PgMajor::V14, &UserSettings::default()).unwrap();
        assert_eq!(value(&fourteen, "recovery_prefetch"), None);
        assert_eq!(value(&fourteen, "io_method"), None);
        let eighteen = settings(PgMajor::V18, &UserSettings::default()).unwrap();
        assert_eq!(value(&eighteen, "io_method"), Some("worker"));
    }

    #[test]
    fn io_uring_is_refused_with_the_remedy() {
        let user = UserSettings {
            io_method: Some("io_uring".to_owned()),
            ..UserSettings::default()
        };
        let error = settings(PgMajor::V18, &user).unwrap_err().to_string();
        assert!(
            error.contains("io_uring") && error.contains("worker or sync"),
            "{error}"
        );
    }
}
