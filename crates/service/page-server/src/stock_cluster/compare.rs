//! Comparing a store with the files of a stopped server.

use std::collections::HashMap;
use std::path::Path;

use cluster_state::Skeleton;
use pg_page::{ControlFile, Page};
use pg_types::{BLCKSZ, ForkNumber, Lsn, Oid, PageKey, RelFork, Slru};
use testkit::StockServer;

use super::Opened;
use super::mask::{Kind, mask};

/// Which relation file belongs to what, for masking; none when everything must be equal.
pub(super) struct Relations {
    kinds: Option<HashMap<(Oid, Oid), Kind>>,
}

impl Relations {
    pub(super) fn exact() -> Relations {
        Relations { kinds: None }
    }

    /// Asks the running server.
    pub(super) fn of(server: &StockServer) -> Relations {
        let databases = server
            .psql(
                "postgres",
                "SELECT oid, datname FROM pg_database WHERE datallowconn",
            )
            .unwrap();
        let mut kinds = HashMap::new();
        for line in databases.lines() {
            let (db, name) = line.split_once('|').unwrap();
            let rows = server
                .psql(
                    name,
                    "SELECT CASE WHEN relisshared THEN 0 ELSE 1 END, pg_relation_filenode(c.oid), \
                     relkind, coalesce(amname, '-') FROM pg_class c LEFT JOIN pg_am a ON a.oid = relam \
                     WHERE pg_relation_filenode(c.oid) IS NOT NULL AND relpersistence <> 't'",
                )
                .unwrap();
            for row in rows.lines() {
                let fields: Vec<&str> = row.split('|').collect();
                let kind = match (fields[2], fields[3]) {
                    ("S", _) => Kind::Sequence,
                    (_, "btree") => Kind::Btree,
                    (_, "hash") => Kind::Hash,
                    (_, "gin") => Kind::Gin,
                    (_, "gist") => Kind::Gist,
                    (_, "spgist") => Kind::Spgist,
                    (_, "brin") => Kind::Brin,
                    (_, "heap" | "-") => Kind::Heap,
                    other => panic!("unknown kind of relation {other:?}"),
                };
                let db = if fields[0] == "0" {
                    0
                } else {
                    db.parse().unwrap()
                };
                kinds.insert((db, fields[1].parse().unwrap()), kind);
            }
        }
        Relations { kinds: Some(kinds) }
    }
}

fn skeleton(opened: &Opened, lsn: Lsn) -> Skeleton {
    opened
        .history
        .read()
        .skeleton_at(lsn, Lsn::INVALID)
        .unwrap()
}

/// The file of a fork, all segments one after the other; `None` when there is none.
fn file_of(server: &StockServer, fork: RelFork, major: pg_types::PgMajor) -> Option<Vec<u8>> {
    let locator = fork.locator;
    let directory = match locator.spc {
        1664 => "global".to_owned(),
        1663 => format!("base/{}", locator.db),
        spc => format!(
            "pg_tblspc/{spc}/{}/{}",
            major.tablespace_directory(),
            locator.db
        ),
    };
    let path = server.data_dir().join(directory);
    std::fs::read(path.join(format!("{}{}", locator.rel, fork.fork.suffix()))).ok()
}

/// Every fork of the skeleton equals its file, page by page.
pub(super) fn files_equal(opened: &Opened, server: &StockServer, lsn: Lsn, relations: &Relations) {
    let skeleton = skeleton(opened, lsn);
    let mut compared = 0;
    let mut kinds_seen = std::collections::BTreeSet::new();
    for relation in &skeleton.relations {
        let fork = relation.fork;
        let kind = match &relations.kinds {
            None => None,
            Some(_) if fork.fork == ForkNumber::Fsm => continue,
            Some(kinds) => match kinds.get(&(fork.locator.db, fork.locator.rel)) {
                Some(kind) => Some(*kind),
                // A prepared transaction's table is in no catalog that others see.
                None if fork.locator.rel >= 16_384 => Some(Kind::Heap),
                // Nobody can connect to template0, so nothing in it changes.
                None => None,
            },
        };
        let file = file_of(server, fork, skeleton.major)
            .unwrap_or_else(|| panic!("{fork} is in the skeleton, but there is no file"));
        let (pages, _) = file.as_chunks::<BLCKSZ>();
        let blocks = relation.blocks as usize;
        assert!(
            blocks <= pages.len(),
            "{fork}: {blocks} blocks, the file has {}",
            pages.len()
        );
        if relations.kinds.is_none() {
            assert_eq!(blocks, pages.len(), "{fork}");
        }
        for page in &pages[blocks..] {
            let used = pg_page::page_header::lower(page) > 24;
            assert!(!used, "{fork}: a page with contents is beyond the end");
        }
        for (block, expected) in (0..).zip(&pages[..blocks]) {
            page_equals(
                opened,
                PageKey::relation(fork.locator, fork.fork, block),
                lsn,
                expected,
                kind,
            );
            compared += 1;
        }
        kinds_seen.extend(kind.map(|kind| format!("{kind:?}")));
    }
    assert!(compared > 1000, "only {compared} pages were compared");
    if relations.kinds.is_some() {
        assert_eq!(kinds_seen.len(), 8, "{kinds_seen:?}");
    }
    nothing_missing(opened, server, lsn);
}

fn page_equals(opened: &Opened, key: PageKey, lsn: Lsn, expected: &Page, kind: Option<Kind>) {
    let mut page: Page = [0x5A; BLCKSZ];
    opened.store.get_page(key, lsn, &mut page).unwrap();
    let Some(kind) = kind else {
        assert!(page == *expected, "{key} differs from its file");
        return;
    };
    let fork = key.as_relation().unwrap().fork;
    let (mut ours, mut theirs) = (page, *expected);
    mask(&mut ours, kind, fork, key.block);
    mask(&mut theirs, kind, fork, key.block);
    if let Some(at) = ours
        .iter()
        .zip(&theirs)
        .position(|(ours, theirs)| ours != theirs)
    {
        let from = at & !15;
        panic!(
            "{key} ({kind:?}) at {lsn} differs from its file at byte {at}: {:02x?} instead of {:02x?}; page LSNs {} and {}",
            &ours[from..from + 32],
            &theirs[from..from + 32],
            pg_page::page_header::lsn(&page),
            pg_page::page_header::lsn(expected),
        );
    }
}

/// Every file with contents is in the skeleton, unless its relation is unlogged or temporary.
fn nothing_missing(opened: &Opened, server: &StockServer, lsn: Lsn) {
    let history = opened.history.read();
    let mut seen = 0;
    let mut check = |directory: &Path, spc: Oid, db: Oid| {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let (stem, fork) = match name.split_once('_') {
                Some((stem, "vm")) => (stem, ForkNumber::Vm),
                Some((stem, "init")) => (stem, ForkNumber::Init),
                Some(_) => continue,
                None => (name.as_str(), ForkNumber::Main),
            };
            let Ok(rel) = stem.parse() else {
                continue;
            };
            let locator = pg_types::RelFileLocator { spc, db, rel };
            let is_unlogged = history
                .size_at(
                    RelFork {
                        locator,
                        fork: ForkNumber::Init,
                    },
                    lsn,
                )
                .is_some();
            if entry.metadata().unwrap().len() == 0 || is_unlogged && fork != ForkNumber::Init {
                continue;
            }
            // A map page without bits is made when its page is looked up, unlogged.
            let file = std::fs::read(entry.path()).unwrap();
            let (pages, _) = file.as_chunks::<BLCKSZ>();
            if pages
                .iter()
                .all(|page| page[24..].iter().all(|byte| *byte == 0))
            {
                continue;
            }
            let size = history.size_at(RelFork { locator, fork }, lsn);
            assert!(size.is_some(), "{locator} {fork:?} is not in the skeleton");
            seen += 1;
        }
    };
    check(&server.data_dir().join("global"), 1664, 0);
    for entry in std::fs::read_dir(server.data_dir().join("base")).unwrap() {
        let entry = entry.unwrap();
        if let Ok(db) = entry.file_name().to_str().unwrap().parse() {
            check(&entry.path(), 1663, db);
        }
    }
    assert!(seen > 500);
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

/// Everything that is not a relation page.
pub(super) fn state_equals(opened: &Opened, server: &StockServer, lsn: Lsn) {
    let pgdata = server.data_dir();
    let skeleton = skeleton(opened, lsn);
    let theirs =
        ControlFile::decode(&std::fs::read(pgdata.join("global/pg_control")).unwrap()).unwrap();
    let ours = ControlFile::decode(&unhex(&skeleton.control)).unwrap();
    let (mut expected, given) = (theirs.checkpoint(), ours.checkpoint());
    // The compute manager sets these; newest_commit_ts is what may have committed at most.
    (expected.redo, expected.time) = (given.redo, given.time);
    (expected.full_page_writes, expected.wal_level) = (given.full_page_writes, given.wal_level);
    assert!(given.newest_commit_ts_xid >= expected.newest_commit_ts_xid);
    expected.newest_commit_ts_xid = given.newest_commit_ts_xid;
    assert_eq!(given, expected);
    assert_eq!(ours.parameters(), theirs.parameters());

    for map in &skeleton.relation_maps {
        let directory = match (map.spc, map.db) {
            (1664, 0) => "global".to_owned(),
            (1663, db) => format!("base/{db}"),
            (spc, db) => format!(
                "pg_tblspc/{spc}/{}/{db}",
                skeleton.major.tablespace_directory()
            ),
        };
        let file = std::fs::read(pgdata.join(&directory).join("pg_filenode.map")).unwrap();
        assert!(file == unhex(&map.bytes), "{directory}/pg_filenode.map");
    }
    for directory in std::fs::read_dir(pgdata.join("base")).unwrap() {
        let db = directory
            .unwrap()
            .file_name()
            .into_string()
            .unwrap()
            .parse()
            .unwrap();
        assert!(
            skeleton
                .databases
                .contains(&cluster_state::DatabaseDir { spc: 1663, db })
        );
        assert!(
            skeleton
                .relation_maps
                .iter()
                .any(|map| (map.spc, map.db) == (1663, db))
        );
    }

    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(pgdata.join("pg_twophase"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                std::fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    files.sort();
    let ours: Vec<(String, Vec<u8>)> = skeleton
        .two_phase
        .iter()
        .map(|file| (file.name.clone(), unhex(&file.bytes)))
        .collect();
    assert_eq!(
        files.len(),
        1,
        "the workload leaves one transaction prepared"
    );
    assert!(ours == files, "two-phase files differ");

    let mut pages = 0;
    for range in &skeleton.slrus {
        for number in range.first..=range.last {
            pages += u32::from(slru_page_equals(opened, server, range.slru, number, lsn));
        }
    }
    assert!(pages >= 4, "only {pages} SLRU pages were compared");
}

fn slru_page_equals(
    opened: &Opened,
    server: &StockServer,
    slru: Slru,
    number: u32,
    lsn: Lsn,
) -> bool {
    let (name, offset) = pg_page::slru::page_location(number);
    let path = server.data_dir().join(slru.directory()).join(name);
    let file = std::fs::read(&path).unwrap_or_default();
    let mut page: Page = [0x5A; BLCKSZ];
    opened
        .store
        .get_page(PageKey::slru(slru, number), lsn, &mut page)
        .unwrap();
    let Some(expected) = file
        .get(offset as usize..)
        .and_then(|rest| rest.first_chunk::<BLCKSZ>())
    else {
        assert!(
            page == [0; BLCKSZ],
            "{} page {number} is not in {}",
            slru.directory(),
            path.display()
        );
        return false;
    };
    if let Some(at) = page
        .iter()
        .zip(expected)
        .position(|(ours, theirs)| ours != theirs)
    {
        panic!(
            "{} page {number} at {lsn} differs at byte {at}: {:02x?} instead of {:02x?}",
            slru.directory(),
            &page[at..(at + 16).min(BLCKSZ)],
            &expected[at..(at + 16).min(BLCKSZ)],
        );
    }
    true
}
