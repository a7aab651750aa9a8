//! Relations, databases, tablespaces and relation maps.

use pg_page::visibility_map::HEAP_BLOCKS_PER_PAGE;
use pg_types::{BlockNumber, ForkNumber, Lsn, Oid, RelFileLocator, RelFork};
use pg_wal::Record;
use pg_wal::records::dbase::DbaseRecord;
use pg_wal::records::relmap::RelmapUpdate;
use pg_wal::records::smgr::{SmgrRecord, TRUNCATE_FSM, TRUNCATE_HEAP, TRUNCATE_VM};
use pg_wal::records::tblspc::TblspcRecord;

use super::body_error::BodyError;
use super::{ChangeSink, ClusterIngest};
use crate::{ForkChange, ForkState, StateChange};

impl ClusterIngest {
    pub(super) fn storage(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match SmgrRecord::decode(record)? {
            SmgrRecord::Create { rel: locator, fork } => {
                // The server made the file with O_EXCL before it logged this, so whatever is known
                // under this name is of an earlier life.
                let fork = RelFork { locator, fork };
                self.forks.insert(fork, 0);
                let state = Some(ForkState {
                    blocks: 0,
                    change: ForkChange::Cut,
                });
                sink.state(end, StateChange::Fork { fork, state });
            }
            SmgrRecord::Truncate { rel, blocks, flags } => {
                self.truncate(rel, blocks, flags, end, sink);
            }
        }
        Ok(())
    }

    fn truncate(
        &mut self,
        locator: RelFileLocator,
        blocks: BlockNumber,
        flags: u32,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if flags & TRUNCATE_HEAP != 0 {
            let fork = RelFork {
                locator,
                fork: ForkNumber::Main,
            };
            self.cut_fork(fork, blocks, end, sink);
        }
        if flags & TRUNCATE_VM != 0 {
            let fork = RelFork {
                locator,
                fork: ForkNumber::Vm,
            };
            self.cut_fork(fork, blocks.div_ceil(HEAP_BLOCKS_PER_PAGE), end, sink);
        }
        if flags & TRUNCATE_FSM != 0 {
            // Free space is not logged, so the map that is known is an old one, and clearing its
            // tail is not logged either. A map that offers blocks past the end makes early minor
            // releases fail ("could not read block"), so it goes; PostgreSQL makes a new one.
            self.drop_fork(
                RelFork {
                    locator,
                    fork: ForkNumber::Fsm,
                },
                end,
                sink,
            );
        }
    }

    pub(super) fn relation_map(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        let update = RelmapUpdate::decode(record)?;
        self.set_relation_map(update.space, update.db, Some(update.map.into()), end, sink);
        Ok(())
    }

    fn set_relation_map(
        &mut self,
        spc: Oid,
        db: Oid,
        bytes: Option<Box<[u8]>>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        match &bytes {
            Some(bytes) => {
                self.relation_maps.insert((spc, db), bytes.clone());
            }
            None => {
                if self.relation_maps.remove(&(spc, db)).is_none() {
                    return;
                }
            }
        }
        sink.state(end, StateChange::RelationMap { spc, db, bytes });
    }

    pub(super) fn database(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match DbaseRecord::decode(record)? {
            DbaseRecord::CreateFileCopy {
                db,
                space,
                source_db,
                source_space,
            } => {
                self.copy_directory((source_space, source_db), (space, db), end, sink);
            }
            DbaseRecord::CreateWalLog { db, space } => {
                self.databases.insert((space, db));
                sink.state(
                    end,
                    StateChange::Database {
                        spc: space,
                        db,
                        exists: true,
                    },
                );
            }
            DbaseRecord::Drop { db, spaces } => {
                for spc in spaces.iter() {
                    self.drop_directory((spc, db), end, sink);
                }
            }
        }
        Ok(())
    }

    /// Every file of `from` is copied to `to` as it is at this record, which replaces what was there.
    fn copy_directory(
        &mut self,
        from: (Oid, Oid),
        to: (Oid, Oid),
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        let (spc, db) = to;
        let change = ForkChange::CopiedFrom {
            spc: from.0,
            db: from.1,
        };
        let copied: Vec<(RelFork, BlockNumber)> = self
            .forks_in(from)
            .map(|(fork, blocks)| {
                let locator = RelFileLocator {
                    spc,
                    db,
                    rel: fork.locator.rel,
                };
                (RelFork { locator, ..fork }, blocks)
            })
            .collect();
        let replaced: Vec<RelFork> = self.forks_in(to).map(|(fork, _)| fork).collect();
        for fork in &replaced {
            self.forks.remove(fork);
        }
        for (fork, blocks) in &copied {
            self.forks.insert(*fork, *blocks);
            let state = Some(ForkState {
                blocks: *blocks,
                change,
            });
            sink.state(end, StateChange::Fork { fork: *fork, state });
        }
        for fork in replaced {
            if !self.forks.contains_key(&fork) {
                sink.state(end, StateChange::Fork { fork, state: None });
            }
        }
        let map = self.relation_maps.get(&from).cloned();
        self.set_relation_map(spc, db, map, end, sink);
        self.databases.insert(to);
        sink.state(
            end,
            StateChange::Database {
                spc,
                db,
                exists: true,
            },
        );
    }

    fn drop_directory(&mut self, directory: (Oid, Oid), end: Lsn, sink: &mut impl ChangeSink) {
        let (spc, db) = directory;
        let forks: Vec<RelFork> = self.forks_in(directory).map(|(fork, _)| fork).collect();
        for fork in forks {
            self.drop_fork(fork, end, sink);
        }
        self.set_relation_map(spc, db, None, end, sink);
        if self.databases.remove(&directory) {
            sink.state(
                end,
                StateChange::Database {
                    spc,
                    db,
                    exists: false,
                },
            );
        }
    }

    fn forks_in(&self, (spc, db): (Oid, Oid)) -> impl Iterator<Item = (RelFork, BlockNumber)> {
        self.forks
            .iter()
            .filter(move |(fork, _)| fork.locator.spc == spc && fork.locator.db == db)
            .map(|(fork, blocks)| (*fork, *blocks))
    }

    pub(super) fn tablespace(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match TblspcRecord::decode(record)? {
            TblspcRecord::Create { space, path } => {
                let path = std::str::from_utf8(path).map_err(|_| BodyError::TablespacePath)?;
                self.tablespaces.insert(space);
                let location = Some(path.to_owned());
                sink.state(
                    end,
                    StateChange::Tablespace {
                        oid: space,
                        location,
                    },
                );
            }
            TblspcRecord::Drop { space } => {
                // It is empty, except for directories of databases that have nothing left in it.
                let left: Vec<(Oid, Oid)> = self
                    .databases
                    .iter()
                    .filter(|(spc, _)| *spc == space)
                    .copied()
                    .collect();
                for directory in left {
                    self.drop_directory(directory, end, sink);
                }
                if self.tablespaces.remove(&space) {
                    sink.state(
                        end,
                        StateChange::Tablespace {
                            oid: space,
                            location: None,
                        },
                    );
                }
            }
        }
        Ok(())
    }
}
