//! The cluster as native redo has it: a base copy of the data files plus the pages that records
//! changed, page by page through mini-records, as the storage node keeps them.

use std::collections::{BTreeMap, HashMap, HashSet};

use pg_page::{Page, page_header};
use pg_redo::{Facts, RedoContext, page_changes, redo};
use pg_types::{BLCKSZ, ForkNumber, Lsn, Oid, PageKey, PgMajor, RelFileLocator, RelFork};
use pg_wal::records::dbase::DbaseRecord;
use pg_wal::records::smgr::SmgrRecord;
use pg_wal::records::xact::XactRecord;
use pg_wal::{MiniRecord, Record, RmgrId};

use crate::files::DataFiles;
use crate::masks::{Kind, forget_gist_split, masked};

/// Block references that were compared and those that differed, by resource manager, info and
/// number of the reference.
#[derive(Default)]
pub struct Counts {
    pub records: u64,
    pub changes: u64,
    pub compared: BTreeMap<(RmgrId, u8, u8), (u64, u64)>,
    pub complaints: Vec<String>,
}

impl Counts {
    pub fn complain(&mut self, text: String) {
        if self.complaints.len() < 40 {
            eprintln!("{text}");
        }
        self.complaints.push(text);
    }
}

pub struct Model {
    base: DataFiles,
    facts: Facts,
    pages: HashMap<PageKey, Box<Page>>,
    /// Blocks of the base that still count, where fewer than the file has.
    base_blocks: HashMap<RelFork, u32>,
    /// Databases whose files are those of another one in the base.
    copies: HashMap<Oid, Oid>,
    /// Databases that were copied page by page through the WAL.
    logged_databases: HashSet<Oid>,
    mini: Vec<u8>,
    pub counts: Counts,
}

impl Model {
    pub fn new(base: DataFiles, facts: Facts) -> Model {
        Model {
            base,
            facts,
            pages: HashMap::new(),
            base_blocks: HashMap::new(),
            copies: HashMap::new(),
            logged_databases: HashSet::new(),
            mini: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The page of `key` as it is now; zeros when nothing wrote it.
    pub fn page(&self, key: PageKey) -> Box<Page> {
        self.pages
            .get(&key)
            .cloned()
            .unwrap_or_else(|| self.base_page(key))
    }

    fn base_page(&self, key: PageKey) -> Box<Page> {
        let zero = || Box::new([0; BLCKSZ]);
        let Some(fork) = key.as_relation() else {
            return self.base.page(key).unwrap_or_else(zero);
        };
        if self
            .base_blocks
            .get(&fork)
            .is_some_and(|blocks| key.block >= *blocks)
        {
            return zero();
        }
        let db = self.copies.get(&key.db).copied().unwrap_or(key.db);
        self.base.page(PageKey { db, ..key }).unwrap_or_else(zero)
    }

    pub fn apply(&mut self, record: &Record<'_>, start: Lsn, end: Lsn) {
        self.counts.records += 1;
        self.apply_to_files(record);
        let mut changes = Vec::new();
        if let Err(error) = page_changes(record, &self.facts, &mut |change| changes.push(change)) {
            self.counts.complain(format!("{start}: {error}"));
        }
        let context = RedoContext {
            major: self.facts.major,
        };
        for change in changes {
            self.counts.changes += 1;
            let mut page = match self.pages.remove(&change.key) {
                Some(page) => page,
                None => self.base_page(change.key),
            };
            if change.initializes {
                // Its content must not matter.
                page.fill(0xA5);
            }
            self.mini.clear();
            MiniRecord::encode_from(
                record,
                change.target,
                change.initializes,
                self.facts.hint_lsn,
                change.keep_image,
                &mut self.mini,
            );
            let mini = MiniRecord::decode(&self.mini).expect("mini-record");
            let slim = mini
                .decode_record(self.facts.major)
                .expect("record of mini-record");
            if let Err(error) = redo(&mut page, change.key, &mini, &slim, end, &context) {
                self.counts.complain(format!("{start}: {error}"));
            }
            self.pages.insert(change.key, page);
        }
        self.compare_images(record, start);
    }

    /// Compares the pages of `record` with the after-images it carries for checking.
    fn compare_images(&mut self, record: &Record<'_>, start: Lsn) {
        for block in &record.blocks {
            let Some(image) = block.image.filter(|image| !image.apply) else {
                continue;
            };
            let Some(kind) = kind_of(record.header.rmid, block.fork) else {
                continue;
            };
            let mut after = Box::new([0; BLCKSZ]);
            image.restore(&mut after).expect("after-image");
            let key = PageKey::relation(block.rel, block.fork, block.block);
            let mut mine = self.page(key);
            let left_child = matches!((record.info(), block.id), (0x00, 1) | (0x30, 0));
            if kind == Kind::Gist && left_child {
                forget_gist_split(&mut mine);
                forget_gist_split(&mut after);
            }
            let found = self.difference(key, &mine, &after, kind);
            let type_of = (record.header.rmid, record.info(), block.id);
            let count = self.counts.compared.entry(type_of).or_default();
            count.0 += 1;
            if let Some(difference) = found {
                count.1 += 1;
                let (rmgr, info, id) = type_of;
                self.counts.complain(format!(
                    "{start}: {rmgr} {info:#04x} reference {id} on {key}: {difference}"
                ));
                // One wrong page would make every later record on it differ as well.
                self.pages.insert(key, after);
            }
        }
    }

    /// Files that records create, cut and remove.
    fn apply_to_files(&mut self, record: &Record<'_>) {
        match record.header.rmid {
            RmgrId::SMGR => match SmgrRecord::decode(record).expect("storage record") {
                SmgrRecord::Create { rel, fork } => self.cut(RelFork { locator: rel, fork }, 0),
                SmgrRecord::Truncate { rel, blocks, flags } => {
                    if flags & 1 != 0 {
                        self.cut(
                            RelFork {
                                locator: rel,
                                fork: ForkNumber::Main,
                            },
                            blocks,
                        );
                    }
                    if flags & 2 != 0 {
                        self.cut(
                            RelFork {
                                locator: rel,
                                fork: ForkNumber::Vm,
                            },
                            blocks.div_ceil(32_672),
                        );
                    }
                }
            },
            RmgrId::XACT => {
                let dropped = match XactRecord::decode(record).expect("transaction record") {
                    XactRecord::Commit(end) | XactRecord::Abort(end) => end.dropped,
                    _ => return,
                };
                for locator in dropped.iter() {
                    ForkNumber::ALL.iter().for_each(|fork| {
                        self.cut(
                            RelFork {
                                locator,
                                fork: *fork,
                            },
                            0,
                        )
                    });
                }
            }
            RmgrId::DBASE => match DbaseRecord::decode(record).expect("database record") {
                DbaseRecord::CreateFileCopy { db, source_db, .. } => {
                    self.copy_database(source_db, db)
                }
                DbaseRecord::CreateWalLog { db, .. } => {
                    self.logged_databases.insert(db);
                }
                DbaseRecord::Drop { .. } => {}
            },
            _ => {}
        }
    }

    fn cut(&mut self, fork: RelFork, blocks: u32) {
        self.pages
            .retain(|key, _| key.as_relation() != Some(fork) || key.block < blocks);
        let limit = self.base_blocks.entry(fork).or_insert(blocks);
        *limit = blocks.min(*limit);
    }

    fn copy_database(&mut self, from: Oid, to: Oid) {
        let pages: Vec<_> = self
            .pages
            .iter()
            .filter(|(key, _)| key.db == from && key.space != 0)
            .map(|(key, page)| (PageKey { db: to, ..*key }, page.clone()))
            .collect();
        self.pages.extend(pages);
        let limits: Vec<_> = self
            .base_blocks
            .iter()
            .filter(|(fork, _)| fork.locator.db == from)
            .map(|(fork, blocks)| {
                (
                    RelFork {
                        locator: RelFileLocator {
                            db: to,
                            ..fork.locator
                        },
                        ..*fork
                    },
                    *blocks,
                )
            })
            .collect();
        self.base_blocks.extend(limits);
        let base = self.copies.get(&from).copied().unwrap_or(from);
        self.copies.insert(to, base);
    }

    /// What differs between the page of `key` here and at the server, if anything does.
    ///
    /// Two things recovery of the server itself does not reproduce. It initialises map pages that
    /// have no bits yet without logging that. And when `CREATE DATABASE` copies pages through the
    /// WAL, it logs map pages as if they had a hole, which is where all their bits are; so bits of
    /// such a database may be missing, but none may be there that the server does not have.
    pub fn difference(
        &self,
        key: PageKey,
        mine: &Page,
        theirs: &Page,
        kind: Kind,
    ) -> Option<String> {
        if kind == Kind::VisibilityMap {
            let bits = || mine[24..].iter().zip(&theirs[24..]);
            if page_header::is_new(mine) && theirs[24..].iter().all(|byte| *byte == 0) {
                return None;
            }
            if self.logged_databases.contains(&key.db) && bits().all(|(a, b)| a & !b == 0) {
                return None;
            }
        }
        compare(mine, theirs, kind, key.block)
    }

    pub fn major(&self) -> PgMajor {
        self.facts.major
    }
}

/// What differs between two pages under the masks of their kind, if anything does.
fn compare(mine: &Page, theirs: &Page, kind: Kind, block: u32) -> Option<String> {
    let (mine, theirs) = (masked(mine, kind, block), masked(theirs, kind, block));
    if mine == theirs {
        return None;
    }
    let bytes: Vec<_> = (0..BLCKSZ).filter(|at| mine[*at] != theirs[*at]).collect();
    let shown: Vec<_> = bytes
        .iter()
        .take(12)
        .map(|at| format!("{at}: {:02x} is not {:02x}", mine[*at], theirs[*at]))
        .collect();
    Some(format!(
        "{} bytes of a {kind:?} page differ: {}",
        bytes.len(),
        shown.join(", ")
    ))
}

fn kind_of(rmgr: RmgrId, fork: ForkNumber) -> Option<Kind> {
    if fork == ForkNumber::Vm {
        return Some(Kind::VisibilityMap);
    }
    Some(match rmgr {
        RmgrId::HEAP | RmgrId::HEAP2 => Kind::Heap,
        RmgrId::BTREE => Kind::Btree,
        RmgrId::HASH => Kind::Hash,
        RmgrId::GIN => Kind::Gin,
        RmgrId::GIST => Kind::Gist,
        RmgrId::SPGIST => Kind::Spgist,
        RmgrId::BRIN => Kind::Brin,
        RmgrId::GENERIC => Kind::Bloom,
        RmgrId::SEQ => Kind::Sequence,
        _ => return None,
    })
}
