//! The sizes and lives of one relation fork.
//!
//! **Invariant.** A block's *life* begins where the fork was created, or cut to at most that block, and
//! ends at the next such point. Changes of an earlier life never reach a later one: a block that is
//! re-extended after a truncation starts from zeros again, as it does in stock PostgreSQL. Otherwise
//! rows come back from a truncated or dropped relation (traps 6 and 7 of the facts).
//!
//! Growth is not a new life: a block past the end has had no changes, so nothing has to be hidden.

use pg_types::{BlockNumber, Lsn, Oid};

/// State of a fork from an LSN on; `None` in its place means that the fork does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkState {
    /// Blocks the fork has.
    pub blocks: BlockNumber,
    /// How it came to that.
    pub change: ForkChange,
}

/// How a fork came to its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkChange {
    /// It grew, or was imported: every block that was there stays in its life.
    Grown,
    /// It was created, or cut: blocks from its size on begin a new life, as zeros.
    Cut,
    /// It was copied, with its whole database directory, from the same relation there: each of its
    /// blocks begins a new life with the content the source's block has at this LSN.
    CopiedFrom {
        /// Tablespace of the source directory.
        spc: Oid,
        /// Database of the source directory.
        db: Oid,
    },
}

/// What a block of this fork consists of before its first change after `since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) since: Lsn,
    /// The directory that it was copied from at `since`.
    pub(crate) copied_from: Option<(Oid, Oid)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    lsn: Lsn,
    /// Blocks below this one live on.
    keeps: BlockNumber,
    /// Blocks below `.2` are copies from directory (`.0`, `.1`).
    copied: Option<(Oid, Oid, BlockNumber)>,
}

/// Stands for "does not exist" in the list of sizes; no fork can have that many blocks.
const ABSENT: BlockNumber = BlockNumber::MAX;

/// Everything that has happened to one fork.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ForkHistory {
    /// Ascending.
    sizes: Vec<(Lsn, BlockNumber)>,
    /// Ascending; growth is not in here, so the list is short and a search from its end is cheap.
    cuts: Vec<Cut>,
}

impl ForkHistory {
    /// Records that the fork has `state` from `lsn` on. LSNs never go down; an LSN seen before
    /// replaces what was recorded there.
    pub(crate) fn insert(&mut self, lsn: Lsn, state: Option<ForkState>) {
        while self.sizes.last().is_some_and(|(last, _)| *last >= lsn) {
            self.sizes.pop();
        }
        while self.cuts.last().is_some_and(|cut| cut.lsn >= lsn) {
            self.cuts.pop();
        }
        self.sizes
            .push((lsn, state.map_or(ABSENT, |state| state.blocks)));
        let cut = match state {
            None => Cut {
                lsn,
                keeps: 0,
                copied: None,
            },
            Some(ForkState {
                blocks,
                change: ForkChange::Cut,
            }) => Cut {
                lsn,
                keeps: blocks,
                copied: None,
            },
            Some(ForkState {
                blocks,
                change: ForkChange::CopiedFrom { spc, db },
            }) => Cut {
                lsn,
                keeps: 0,
                copied: Some((spc, db, blocks)),
            },
            Some(ForkState {
                change: ForkChange::Grown,
                ..
            }) => return,
        };
        self.cuts.push(cut);
    }

    /// Blocks at `lsn`; `None` when the fork does not exist there.
    pub(crate) fn size_at(&self, lsn: Lsn) -> Option<BlockNumber> {
        let after = self.sizes.partition_point(|(from, _)| *from <= lsn);
        let (_, blocks) = self.sizes.get(after.checked_sub(1)?)?;
        (*blocks != ABSENT).then_some(*blocks)
    }

    /// The life that `block` is in at `lsn`.
    pub(crate) fn life_at(&self, block: BlockNumber, lsn: Lsn) -> Life {
        for cut in self.cuts.iter().rev().filter(|cut| cut.lsn <= lsn) {
            match cut.copied {
                Some((spc, db, blocks)) => {
                    let copied_from = (block < blocks).then_some((spc, db));
                    return Life {
                        since: cut.lsn,
                        copied_from,
                    };
                }
                None if cut.keeps <= block => {
                    return Life {
                        since: cut.lsn,
                        copied_from: None,
                    };
                }
                None => {}
            }
        }
        Life {
            since: Lsn::INVALID,
            copied_from: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grown(blocks: BlockNumber) -> Option<ForkState> {
        Some(ForkState {
            blocks,
            change: ForkChange::Grown,
        })
    }

    fn cut(blocks: BlockNumber) -> Option<ForkState> {
        Some(ForkState {
            blocks,
            change: ForkChange::Cut,
        })
    }

    #[test]
    fn trap_06_a_truncated_and_extended_block_starts_anew() {
        let mut fork = ForkHistory::default();
        fork.insert(Lsn(10), grown(8));
        fork.insert(Lsn(20), cut(3));
        fork.insert(Lsn(30), grown(9));
        assert_eq!(fork.size_at(Lsn(9)), None);
        assert_eq!(fork.size_at(Lsn(19)), Some(8));
        assert_eq!(fork.size_at(Lsn(20)), Some(3));
        assert_eq!(fork.life_at(2, Lsn(40)).since, Lsn::INVALID);
        assert_eq!(fork.life_at(3, Lsn(40)).since, Lsn(20));
        assert_eq!(fork.life_at(3, Lsn(19)).since, Lsn::INVALID);
    }

    #[test]
    fn trap_07_a_reused_number_does_not_see_its_predecessor() {
        let mut fork = ForkHistory::default();
        fork.insert(Lsn(10), cut(0));
        fork.insert(Lsn(11), grown(100));
        fork.insert(Lsn(20), None);
        fork.insert(Lsn(30), cut(0));
        fork.insert(Lsn(31), grown(1));
        assert_eq!(fork.size_at(Lsn(25)), None);
        assert_eq!(fork.size_at(Lsn(31)), Some(1));
        assert_eq!(fork.life_at(0, Lsn(31)).since, Lsn(30));
        assert_eq!(fork.life_at(0, Lsn(25)).since, Lsn(20));
        assert_eq!(fork.life_at(0, Lsn(15)).since, Lsn(10));
    }

    #[test]
    fn a_copied_fork_falls_back_to_its_source_until_it_is_cut() {
        let mut fork = ForkHistory::default();
        let change = ForkChange::CopiedFrom { spc: 1663, db: 1 };
        fork.insert(Lsn(10), Some(ForkState { blocks: 4, change }));
        fork.insert(Lsn(20), grown(6));
        fork.insert(Lsn(30), cut(2));
        fork.insert(Lsn(40), grown(4));
        let source = Some((1663, 1));
        assert_eq!(
            fork.life_at(3, Lsn(20)),
            Life {
                since: Lsn(10),
                copied_from: source
            }
        );
        assert_eq!(
            fork.life_at(5, Lsn(20)),
            Life {
                since: Lsn(10),
                copied_from: None
            }
        );
        assert_eq!(
            fork.life_at(1, Lsn(40)),
            Life {
                since: Lsn(10),
                copied_from: source
            }
        );
        assert_eq!(
            fork.life_at(3, Lsn(40)),
            Life {
                since: Lsn(30),
                copied_from: None
            }
        );
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u32),
        Truncate(u32),
        Drop,
        Create,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u32..40).prop_map(Step::Write),
            2 => (0u32..40).prop_map(Step::Truncate),
            1 => Just(Step::Drop),
            1 => Just(Step::Create),
        ]
    }

    proptest! {
        /// Against a model that keeps, for every LSN, the whole file as a list of "LSN of the first
        /// write that this block can still see".
        #[test]
        fn sizes_and_lives_equal_a_model(steps in prop::collection::vec(step(), 1..60)) {
            let mut fork = ForkHistory::default();
            let mut writes: Vec<(Lsn, u32)> = Vec::new();
            let mut file: Option<Vec<Vec<Lsn>>> = None;
            for (index, step) in steps.iter().enumerate() {
                let lsn = Lsn(8 * (index as u64 + 1));
                let size = file.as_ref().map(|blocks| blocks.len() as u32);
                match step {
                    Step::Write(block) => {
                        let blocks = file.get_or_insert_default();
                        if blocks.len() <= *block as usize {
                            blocks.resize(*block as usize + 1, Vec::new());
                            fork.insert(lsn, grown(*block + 1));
                        }
                        blocks[*block as usize].push(lsn);
                        writes.push((lsn, *block));
                    }
                    Step::Truncate(keep) if size.is_some_and(|size| size > *keep) => {
                        if let Some(blocks) = &mut file { blocks.truncate(*keep as usize) }
                        fork.insert(lsn, cut(*keep));
                    }
                    Step::Truncate(_) => {}
                    Step::Drop => {
                        if file.take().is_some() { fork.insert(lsn, None) }
                    }
                    Step::Create => {
                        file = Some(Vec::new());
                        fork.insert(lsn, cut(0));
                    }
                }
                prop_assert_eq!(fork.size_at(lsn), file.as_ref().map(|blocks| blocks.len() as u32));
                for (block, seen) in file.iter().flatten().enumerate() {
                    let since = fork.life_at(block as u32, lsn).since;
                    let visible: Vec<Lsn> = writes
                        .iter()
                        .filter(|(at, written)| *written == block as u32 && *at > since)
                        .map(|(at, _)| *at)
                        .collect();
                    prop_assert_eq!(&visible, seen);
                }
            }
        }
    }
}
