//! Imported and ingested pages against a stock server's own files.
//!
//! The server's stopped data directory is the reference: after the import every page equals the file
//! byte for byte; after ingesting the WAL of a workload every page equals it but for what PostgreSQL
//! itself masks when it compares a page with its replayed copy (`rm_mask`).

mod compare;
mod live;
mod mask;
mod refusal;
mod stuck_source;
mod workload;

use std::path::Path;
use std::sync::Arc;

use page_store::{PageStore, StoreOptions};
use pg_types::Lsn;
use testkit::{PgBinaries, StockServer};

use crate::block_history::SharedHistory;
use crate::import::{ImportError, ImportPlan, ImportedCluster, import_cluster};
use crate::ingestor::{ApplyError, Ingestor};
use crate::status::NodeStatus;

/// An opened store with its history.
pub(crate) struct Opened {
    pub(crate) store: Arc<PageStore>,
    pub(crate) history: Arc<SharedHistory>,
}

impl Opened {
    fn new(dir: &Path) -> Opened {
        let history = Arc::new(SharedHistory::default());
        let blocks: Arc<dyn page_store::BlockHistory> = Arc::<SharedHistory>::clone(&history);
        let store = PageStore::open(dir, StoreOptions::default(), blocks).unwrap();
        history.replace(crate::node::load_history(&store).unwrap());
        Opened {
            store: Arc::new(store),
            history,
        }
    }

    /// Ingests the WAL files of a stopped server from where the store is to the end, and returns it.
    fn ingest_wal_of(&self, server: &StockServer) -> Lsn {
        let status = Arc::new(NodeStatus::default());
        let mut ingestor =
            Ingestor::resume(Arc::clone(&self.store), Arc::clone(&self.history), status).unwrap();
        let identity = *self.store.identity();
        let (from, timeline) = ingestor.position();
        let mut segment = identity.segment_size.segment_of(from);
        loop {
            let name = identity.segment_size.file_name(timeline, segment);
            let start = identity.segment_size.start_of(segment);
            let Ok(bytes) = std::fs::read(server.data_dir().join("pg_wal").join(name)) else {
                break;
            };
            let skip = from.since(start) as usize;
            // As walsender would send it, in portions.
            let mut at = start.advance(skip as u64);
            for portion in bytes[skip..].chunks(100_000) {
                match ingestor.apply(at, portion) {
                    Ok(()) => at = at.advance(portion.len() as u64),
                    Err(ApplyError::Stream(_)) => return ingestor.position().0,
                    Err(error) => panic!("{error}"),
                }
            }
            segment += 1;
        }
        ingestor.position().0
    }
}

fn import(server: &StockServer, store_dir: &Path) -> ImportedCluster {
    let plan = ImportPlan {
        pgdata: server.data_dir(),
        store_dir: store_dir.to_owned(),
    };
    let mut last = (0, 0);
    let imported = import_cluster(&plan, |progress| {
        assert!(progress.done >= last.0 && progress.done <= progress.total);
        last = (progress.done, progress.total);
    })
    .unwrap();
    assert_eq!(last.0, last.1, "the progress ends at its total");
    imported
}

fn import_and_follow(major: u32, checksums: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut server = workload::server(major, dir.path(), checksums);
    let store_dir = dir.path().join("storage");
    server.start().unwrap();
    workload::before_import(&server, dir.path());
    server.stop().unwrap();

    let imported = import(&server, &store_dir);
    assert_eq!(imported.data_checksums, checksums);
    let opened = Opened::new(&store_dir);
    compare::files_equal(&opened, &server, imported.lsn, &compare::Relations::exact());
    compare::state_equals(&opened, &server, imported.lsn);
    // The WAL handed over ends with the checkpoint.
    assert_eq!(
        imported.wal.len() as u64,
        imported.lsn.since(imported.wal_start)
    );

    server.start().unwrap();
    workload::after_import(&server, dir.path());
    let relations = compare::Relations::of(&server);
    server.stop().unwrap();
    let end = opened.ingest_wal_of(&server);
    assert!(end > imported.lsn);
    compare::files_equal(&opened, &server, end, &relations);
    compare::state_equals(&opened, &server, end);
    // The pages of the import are still there.
    let skeleton = opened
        .history
        .read()
        .skeleton_at(imported.lsn, Lsn::INVALID)
        .unwrap();
    opened.store.flush().unwrap();
    drop(opened);

    // And the same from disk.
    let reopened = Opened::new(&store_dir);
    assert_eq!(reopened.store.applied(), end);
    compare::files_equal(&reopened, &server, end, &relations);
    compare::state_equals(&reopened, &server, end);
    let again = reopened
        .history
        .read()
        .skeleton_at(imported.lsn, Lsn::INVALID)
        .unwrap();
    assert_eq!(skeleton, again);
}

#[test]
fn import_then_ingest_equals_a_stock_server_with_checksums() {
    import_and_follow(15, true);
}

#[test]
fn import_then_ingest_equals_a_stock_server_without_checksums() {
    import_and_follow(15, false);
}

/// Runs where PostgreSQL 17 is installed, which Debian 12 does not offer.
#[test]
fn import_then_ingest_equals_a_stock_server_of_17() {
    if PgBinaries::configured(17).is_some() {
        import_and_follow(17, true);
    }
}

#[test]
fn an_import_refuses_what_it_cannot_use_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = workload::server(15, dir.path(), true);
    let store_dir = dir.path().join("storage");
    let plan = ImportPlan {
        pgdata: server.data_dir(),
        store_dir: store_dir.clone(),
    };
    let refusal = |plan: &ImportPlan| import_cluster(plan, |_| {}).unwrap_err();

    server.start().unwrap();
    assert!(matches!(refusal(&plan), ImportError::Running { .. }));
    server
        .psql(
            "postgres",
            "CREATE TABLE t AS SELECT generate_series(1, 10000) AS i",
        )
        .unwrap();
    let file = server
        .psql("postgres", "SELECT pg_relation_filepath('t')")
        .unwrap();
    server.crash().unwrap();
    let error = refusal(&plan);
    assert!(matches!(error, ImportError::Unclean { .. }));
    assert!(error.to_string().contains("pg_ctl start"), "{error}");

    server.start().unwrap();
    server.stop().unwrap();
    let path = server.data_dir().join(file);
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[3 * 8192 + 5000] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let error = refusal(&plan);
    assert!(
        matches!(error, ImportError::Checksum { block: 3, .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains(&path.display().to_string()),
        "{error}"
    );
    assert!(!store_dir.exists());
    std::fs::write(&path, &good).unwrap();

    // What an interrupted import left behind is not taken for a store, and is replaced.
    import(&server, &store_dir);
    assert!(matches!(refusal(&plan), ImportError::Occupied { .. }));
    let empty = ImportPlan {
        pgdata: dir.path().join("nothing"),
        store_dir: dir.path().join("new"),
    };
    assert!(matches!(refusal(&empty), ImportError::NoCluster { .. }));
}
