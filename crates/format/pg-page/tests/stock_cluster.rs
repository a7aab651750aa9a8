//! What stock PostgreSQL writes, read and written back.
//!
//! Uses initdb and pg_controldata of the directories in `STRANDLINE_PG15` (by default Debian's
//! PostgreSQL 15) and, when set, `STRANDLINE_PG17`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pg_page::control::{CONTROL_FILE_PATH, ClusterState};
use pg_page::{ControlFile, Page, PageHeader, checksum, page_header};
use pg_types::{BLCKSZ, Lsn, PgMajor, RELSEG_BLOCKS};

/// A freshly initialised cluster, removed again when dropped.
struct Cluster {
    bin: PathBuf,
    data: PathBuf,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn init(bin: &Path, options: &[&str]) -> Cluster {
        let dir = tempfile::Builder::new()
            .prefix("pg-page-")
            .tempdir()
            .unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        if is_root() {
            // initdb refuses root; the directory above must be passable for its user.
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            run(Command::new("chown").arg("postgres").arg(&data));
        }
        let mut initdb = as_server_user(&bin.join("initdb"));
        initdb
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-D"])
            .arg(&data)
            .args(options);
        run(&mut initdb);
        Cluster {
            bin: bin.to_owned(),
            data,
            _dir: dir,
        }
    }

    fn file(&self, path: &str) -> Vec<u8> {
        fs::read(self.data.join(path)).unwrap()
    }

    /// `pg_controldata`'s lines.
    fn controldata(&self) -> BTreeMap<String, String> {
        let mut command = as_server_user(&self.bin.join("pg_controldata"));
        // Times are printed in this zone and format.
        command.env("TZ", "UTC").env("LC_ALL", "C").arg(&self.data);
        let text = run(&mut command);
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn as_server_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            "--",
        ])
        .arg(program);
    command.current_dir("/");
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Directories of server binaries with their major.
fn servers() -> Vec<(PgMajor, PathBuf)> {
    let fifteen = std::env::var_os("STRANDLINE_PG15").map_or_else(
        || PathBuf::from("/usr/lib/postgresql/15/bin"),
        PathBuf::from,
    );
    let mut servers = vec![(PgMajor::V15, fifteen)];
    servers.extend(std::env::var_os("STRANDLINE_PG17").map(|dir| (PgMajor::V17, dir.into())));
    servers
}

#[test]
fn the_control_file_says_what_pg_controldata_says() {
    let (major, bin) = servers().remove(0);
    let cluster = Cluster::init(&bin, &["-k"]);
    let control = ControlFile::decode(&cluster.file(CONTROL_FILE_PATH)).unwrap();
    let reported = cluster.controldata();
    let checkpoint = control.checkpoint();
    let parameters = control.parameters();
    let on_off = |on: bool| if on { "on" } else { "off" };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let wal_level =
        ["minimal", "replica", "logical"][usize::try_from(parameters.wal_level).unwrap()];
    let nonce: String = control
        .mock_authentication_nonce()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let redo_segment = control.segment_size().file_name(
        checkpoint.timeline,
        control.segment_size().segment_of(checkpoint.redo),
    );
    let ours = [
        (
            "pg_control version number",
            control.control_version().to_string(),
        ),
        (
            "Catalog version number",
            control.catalog_version().to_string(),
        ),
        (
            "Database system identifier",
            control.system_identifier().to_string(),
        ),
        ("Database cluster state", control.state().to_string()),
        ("pg_control last modified", date(control.time())),
        (
            "Latest checkpoint location",
            control.checkpoint_lsn().to_string(),
        ),
        (
            "Latest checkpoint's REDO location",
            checkpoint.redo.to_string(),
        ),
        ("Latest checkpoint's REDO WAL file", redo_segment),
        (
            "Latest checkpoint's TimeLineID",
            checkpoint.timeline.to_string(),
        ),
        (
            "Latest checkpoint's PrevTimeLineID",
            checkpoint.prev_timeline.to_string(),
        ),
        (
            "Latest checkpoint's full_page_writes",
            on_off(checkpoint.full_page_writes).into(),
        ),
        (
            "Latest checkpoint's NextXID",
            checkpoint.next_xid.to_string(),
        ),
        (
            "Latest checkpoint's NextOID",
            checkpoint.next_oid.to_string(),
        ),
        (
            "Latest checkpoint's NextMultiXactId",
            checkpoint.next_multi.to_string(),
        ),
        (
            "Latest checkpoint's NextMultiOffset",
            checkpoint.next_multi_offset.to_string(),
        ),
        (
            "Latest checkpoint's oldestXID",
            checkpoint.oldest_xid.to_string(),
        ),
        (
            "Latest checkpoint's oldestXID's DB",
            checkpoint.oldest_xid_db.to_string(),
        ),
        (
            "Latest checkpoint's oldestActiveXID",
            checkpoint.oldest_active_xid.to_string(),
        ),
        (
            "Latest checkpoint's oldestMultiXid",
            checkpoint.oldest_multi.to_string(),
        ),
        (
            "Latest checkpoint's oldestMulti's DB",
            checkpoint.oldest_multi_db.to_string(),
        ),
        (
            "Latest checkpoint's oldestCommitTsXid",
            checkpoint.oldest_commit_ts_xid.to_string(),
        ),
        (
            "Latest checkpoint's newestCommitTsXid",
            checkpoint.newest_commit_ts_xid.to_string(),
        ),
        ("Time of latest checkpoint", date(checkpoint.time)),
        (
            "Fake LSN counter for unlogged rels",
            control.unlogged_lsn().to_string(),
        ),
        (
            "Minimum recovery ending location",
            control.min_recovery_point().0.to_string(),
        ),
        (
            "Min recovery ending loc's timeline",
            control.min_recovery_point().1.to_string(),
        ),
        ("Backup start location", control.backup_start().to_string()),
        ("Backup end location", control.backup_end().to_string()),
        (
            "End-of-backup record required",
            yes_no(control.backup_end_required()).into(),
        ),
        ("wal_level setting", wal_level.into()),
        (
            "wal_log_hints setting",
            on_off(parameters.wal_log_hints).into(),
        ),
        (
            "max_connections setting",
            parameters.max_connections.to_string(),
        ),
        (
            "max_worker_processes setting",
            parameters.max_worker_processes.to_string(),
        ),
        (
            "max_wal_senders setting",
            parameters.max_wal_senders.to_string(),
        ),
        (
            "max_prepared_xacts setting",
            parameters.max_prepared_transactions.to_string(),
        ),
        (
            "max_locks_per_xact setting",
            parameters.max_locks_per_transaction.to_string(),
        ),
        (
            "track_commit_timestamp setting",
            on_off(parameters.track_commit_timestamp).into(),
        ),
        ("Maximum data alignment", "8".into()),
        ("Database block size", BLCKSZ.to_string()),
        (
            "Blocks per segment of large relation",
            RELSEG_BLOCKS.to_string(),
        ),
        ("WAL block size", pg_types::XLOG_BLCKSZ.to_string()),
        (
            "Bytes per WAL segment",
            control.segment_size().bytes().to_string(),
        ),
        ("Maximum length of identifiers", "64".into()),
        ("Maximum columns in an index", "32".into()),
        ("Maximum size of a TOAST chunk", "1996".into()),
        ("Size of a large-object chunk", "2048".into()),
        ("Date/time type storage", "64-bit integers".into()),
        ("Float8 argument passing", "by value".into()),
        (
            "Data page checksum version",
            u32::from(control.data_checksums()).to_string(),
        ),
        ("Mock authentication nonce", nonce),
    ];
    assert_eq!(control.major(), major);
    assert_eq!(
        ours.len(),
        reported.len(),
        "pg_controldata's lines: {reported:#?}"
    );
    for (name, value) in ours {
        let key = if reported.contains_key(name) {
            name.to_owned()
        } else {
            format!("{name} ")
        };
        assert_eq!(reported.get(key.trim()), Some(&value), "{name}");
    }
}

/// Seconds since 1970 as `pg_controldata` prints them in the C locale and UTC.
fn date(seconds: i64) -> String {
    let mut date = Command::new("date");
    date.env("TZ", "UTC").env("LC_ALL", "C");
    run(date.args(["-u", "-d", &format!("@{seconds}"), "+%a %b %e %H:%M:%S %Y"]))
        .trim()
        .to_owned()
}

#[test]
fn control_files_of_every_server_are_written_back_unchanged() {
    for (major, bin) in servers() {
        for options in [&["-k"][..], &["--wal-segsize=1"][..]] {
            let cluster = Cluster::init(&bin, options);
            let bytes = cluster.file(CONTROL_FILE_PATH);
            let control = ControlFile::decode(&bytes).unwrap();
            assert_eq!(
                control.encode()[..],
                bytes[..],
                "PostgreSQL {major} {options:?}"
            );
            assert_eq!(control.major(), major);
            assert_eq!(control.state(), ClusterState::ShutDown);
            let checksums = options.contains(&"-k");
            assert_eq!(control.data_checksums(), checksums);
            let segment = if checksums { 16 << 20 } else { 1 << 20 };
            assert_eq!(control.segment_size().bytes(), segment);

            let mut altered = ControlFile::decode(&bytes).unwrap();
            altered.set_checkpoint(&control.checkpoint());
            altered.set_parameters(&control.parameters());
            altered.set_state(control.state());
            altered.set_time(control.time());
            altered.set_checkpoint_lsn(control.checkpoint_lsn());
            altered.set_unlogged_lsn(control.unlogged_lsn());
            let (lsn, timeline) = control.min_recovery_point();
            altered.set_min_recovery_point(lsn, timeline);
            assert_eq!(
                altered.encode()[..],
                bytes[..],
                "setting what is set changes nothing"
            );
        }
    }
}

/// The relation files of a cluster: their path and which segment of the fork they are.
fn relation_files(data: &Path) -> Vec<(PathBuf, u32)> {
    let mut directories = vec![data.join("global")];
    directories.extend(
        fs::read_dir(data.join("base"))
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    let mut files = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with(|first: char| first.is_ascii_digit()) {
                continue;
            }
            let segment = name
                .rsplit_once('.')
                .map_or(0, |(_, number)| number.parse().unwrap());
            files.push((path, segment));
        }
    }
    files
}

#[test]
fn every_page_carries_the_checksum_we_compute() {
    for (major, bin) in servers() {
        let cluster = Cluster::init(&bin, &["-k"]);
        let (mut checked, mut new) = (0, 0);
        for (path, segment) in relation_files(&cluster.data) {
            let bytes = fs::read(&path).unwrap();
            let (pages, rest) = bytes.as_chunks::<BLCKSZ>();
            assert!(rest.is_empty(), "{} is not whole pages", path.display());
            for (index, page) in pages.iter().enumerate() {
                let block = segment * RELSEG_BLOCKS + u32::try_from(index).unwrap();
                if page_header::is_new(page) {
                    new += 1;
                    continue;
                }
                let header = PageHeader::read(page);
                assert!(
                    header.is_sane(),
                    "{} block {block}: {header:?}",
                    path.display()
                );
                assert_eq!(
                    header.checksum,
                    checksum(page, block),
                    "{} {block}",
                    path.display()
                );
                assert!(
                    header.lsn < Lsn(1 << 32),
                    "{} block {block}",
                    path.display()
                );
                let mut copy: Page = *page;
                page_header::set_stored_checksum(&mut copy, 0);
                pg_page::set_checksum(&mut copy, block);
                assert_eq!(copy, *page);
                checked += 1;
            }
        }
        assert!(
            checked > 2000,
            "PostgreSQL {major}: only {checked} pages, {new} new"
        );
    }
}
