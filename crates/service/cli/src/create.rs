//! Making a cluster: `initdb` or a stopped stock cluster, imported into a storage node and log stores.
//!
//! **Invariant.** Everything is prepared in `<data>/.preparing`; only when all of it is durable does
//! the mark `complete` appear there, and only then are the parts moved into place, `cluster.toml`
//! last. Interrupted before the mark, nothing was made; after it, the next start finishes the move.
//! So a cluster is never half there.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use compute::initdb::{
    allow_passwords_from_elsewhere, bootstrap_superuser, copy_configuration, initdb,
};
use compute::layout::{CLUSTER_FORMAT, ClusterDescription, Layout, replace_file};
use compute::postgres::PostgresBinary;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use log_store::SeedLog;
use page_server::import::{ImportPlan, ImportedCluster, import_cluster};
use pg_types::Lsn;

use crate::error::{Failure, Outcome};

/// Names that may lie in a data directory without it being in use by somebody else.
const OUR_NAMES: [&str; 7] = [
    "strandline.lock",
    "lib",
    "run",
    "logs",
    ".preparing",
    "lost+found",
    "compute",
];

/// Written when everything in `.preparing` is durable.
const COMPLETE: &str = "complete";

/// Where the new cluster's data comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A new, empty cluster.
    Initdb,
    /// A stopped stock cluster.
    Import(PathBuf),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |error| Failure::new(format!("{}: {error}", path.display()))
}

/// Finishes or removes what an interrupted creation left; says whether a cluster is there.
///
/// # Errors
/// [`Failure`] when files cannot be moved or removed.
pub fn settle(layout: &Layout) -> Outcome<bool> {
    let preparing = layout.preparing();
    if preparing.join(COMPLETE).is_file() {
        move_into_place(layout)?;
    } else if preparing.exists() {
        fs::remove_dir_all(&preparing).map_err(at(&preparing))?;
    }
    Ok(layout.cluster_file().is_file())
}

/// Refuses a directory that holds something else.
///
/// # Errors
/// [`Failure`] naming what is in the way.
pub fn check_vacant(layout: &Layout) -> Outcome<()> {
    if layout.data().join("PG_VERSION").exists() {
        return Err(Failure::new(format!(
            "{} is a stock PostgreSQL data directory, not a Strandline cluster",
            layout.data().display()
        ))
        .hint(format!(
            "import it: strandline import --from {} --data OTHER_DIR",
            layout.data().display()
        )));
    }
    let entries = fs::read_dir(layout.data()).map_err(at(layout.data()))?;
    for entry in entries {
        let name = entry.map_err(at(layout.data()))?.file_name();
        let name = name.to_string_lossy();
        if !OUR_NAMES.contains(&name.as_ref()) && !name.starts_with(".discarded-") {
            return Err(Failure::new(format!(
                "{} is not empty (there is {name}) and holds no Strandline cluster",
                layout.data().display()
            ))
            .hint("name an empty or new directory with --data"));
        }
    }
    Ok(())
}

/// Makes a cluster in an empty data directory. `stop` ends it early and leaves nothing behind.
///
/// # Errors
/// [`Failure`]; nothing is left behind.
pub fn create(
    layout: &Layout,
    source: &Source,
    binary: &PostgresBinary,
    log_stores: usize,
    stop: &Arc<AtomicBool>,
) -> Outcome<ClusterDescription> {
    check_vacant(layout)?;
    let preparing = layout.preparing();
    fs::create_dir(&preparing).map_err(at(&preparing))?;
    let finished = Arc::new(AtomicBool::new(false));
    let guard = clean_up_when_stopped(preparing.clone(), stop, &finished)?;
    let prepared = prepare(layout, source, binary, log_stores);
    finished.store(true, Ordering::SeqCst);
    // The guard ends the whole process if it was asked to stop; otherwise it returns at once.
    let _ = guard.join();
    match prepared {
        Ok(cluster) => {
            move_into_place(layout)?;
            Ok(cluster)
        }
        Err(failure) => {
            if let Err(error) = fs::remove_dir_all(&preparing) {
                tracing::warn!(%error, "could not remove {}", preparing.display());
            }
            Err(failure)
        }
    }
}

/// Removes the half-made cluster and ends the process when `stop` is set before `finished`.
fn clean_up_when_stopped(
    preparing: PathBuf,
    stop: &Arc<AtomicBool>,
    finished: &Arc<AtomicBool>,
) -> Outcome<std::thread::JoinHandle<()>> {
    let (stop, finished) = (Arc::clone(stop), Arc::clone(finished));
    let watch = move || {
        while !finished.load(Ordering::SeqCst) {
            if stop.load(Ordering::SeqCst) {
                // Files are still being written: what appears meanwhile is removed too.
                for _ in 0..50 {
                    if fs::remove_dir_all(&preparing).is_ok() || !preparing.exists() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                eprintln!("\nstrandline: interrupted; nothing was created");
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(watch)
        .map_err(|error| Failure::new(error.to_string()))
}

fn prepare(
    layout: &Layout,
    source: &Source,
    binary: &PostgresBinary,
    log_stores: usize,
) -> Outcome<ClusterDescription> {
    let preparing = Layout::new(layout.preparing());
    let pg_bin = binary.path.parent().unwrap_or(Path::new("/")).to_owned();
    let pgdata = match source {
        Source::Import(pgdata) => pgdata.clone(),
        Source::Initdb => {
            eprintln!(
                "Creating a PostgreSQL {} cluster in {}",
                binary.major,
                layout.data().display()
            );
            let pgdata = preparing.data().join("pgdata");
            initdb(&pg_bin, &pgdata)?;
            pgdata
        }
    };
    let imported = import_pages(&pgdata, &preparing.storage())?;
    if imported.major != binary.major {
        return Err(Failure::new(format!(
            "{} is a data directory of PostgreSQL {}, but {} is PostgreSQL {}",
            pgdata.display(),
            imported.major,
            binary.path.display(),
            binary.version
        ))
        .hint(format!(
            "name the directory of a PostgreSQL {} with --pg-bin",
            imported.major
        )));
    }
    for index in 0..log_stores {
        seed_log(&pgdata, &preparing.log_store(index), &imported)?;
    }
    for warning in copy_configuration(&pgdata, &preparing.config())? {
        eprintln!("strandline: warning: {warning}");
    }
    if matches!(source, Source::Initdb) {
        allow_passwords_from_elsewhere(&preparing.config())?;
    }
    let cluster = ClusterDescription {
        format: CLUSTER_FORMAT,
        system_identifier: imported.system_identifier,
        major: imported.major,
        superuser: bootstrap_superuser(&pgdata, imported.major)?,
        segment_size: imported.segment_size,
        log_stores,
        created_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
        pg_bin,
    };
    cluster.write(&preparing.cluster_file())?;
    if matches!(source, Source::Initdb) {
        fs::remove_dir_all(&pgdata).map_err(at(&pgdata))?;
    }
    let mark = preparing.data().join(COMPLETE);
    replace_file(&mark, b"").map_err(at(&mark))?;
    Ok(cluster)
}

/// Moves what is prepared into the data directory, `cluster.toml` last. Can be repeated.
fn move_into_place(layout: &Layout) -> Outcome<()> {
    let preparing = layout.preparing();
    let mut names: Vec<_> = fs::read_dir(&preparing)
        .map_err(at(&preparing))?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()
        .map_err(at(&preparing))?;
    names.retain(|name| name != COMPLETE);
    names.sort_by_key(|name| name == "cluster.toml");
    let sync = |path: &Path| {
        fs::File::open(path)
            .and_then(|file| file.sync_all())
            .map_err(at(path))
    };
    for name in names {
        if name == "cluster.toml" {
            sync(layout.data())?;
        }
        let from = preparing.join(&name);
        fs::rename(&from, layout.data().join(&name)).map_err(at(&from))?;
    }
    sync(layout.data())?;
    fs::remove_dir_all(&preparing).map_err(at(&preparing))?;
    sync(layout.data())
}

/// Imports the pages of the stopped cluster in `pgdata`, with a progress bar.
fn import_pages(pgdata: &Path, store_dir: &Path) -> Outcome<ImportedCluster> {
    let bar = progress_bar();
    let plan = ImportPlan {
        pgdata: pgdata.to_owned(),
        store_dir: store_dir.to_owned(),
    };
    let imported = import_cluster(&plan, |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    Ok(imported?)
}

/// Makes a log store that holds the log from the segment of the last record on.
fn seed_log(pgdata: &Path, dir: &Path, imported: &ImportedCluster) -> Outcome<()> {
    let size = imported.segment_size;
    let first = size.segment_of(imported.wal_start);
    let last = size.segment_of(Lsn(imported.lsn.0.saturating_sub(1)));
    let segments = (first..=last)
        .map(|number| {
            pgdata
                .join("pg_wal")
                .join(size.file_name(imported.timeline, number))
        })
        .collect();
    let log = SeedLog {
        system_identifier: imported.system_identifier,
        major: imported.major,
        segment_size: size,
        timeline: imported.timeline,
        history_text: imported.history_text.clone(),
        segments,
        end: imported.lsn,
    };
    Ok(log_store::seed(dir, &log)?)
}

/// A progress bar on stderr, if that is a terminal.
fn progress_bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) =
        ProgressStyle::with_template("{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message("importing");
    bar
}
