//! A compute manager: the steps of one start, in the order in which `compute` takes them.

use std::collections::{BTreeMap, VecDeque};

use pg_types::{Lsn, TimelineId};
use wal_quorum::{Candidate, History, choose_history, missing, promises_needed};

use crate::store::Status;
use crate::wal::{Byte, index};
use crate::weakness::Weakness;

#[derive(Debug, Clone)]
pub enum Request {
    Status,
    Promise(TimelineId),
    Read {
        from: Lsn,
        len: usize,
    },
    Write {
        promised: TimelineId,
        target: History,
        at: Lsn,
        bytes: Vec<Byte>,
    },
    Begin {
        target: History,
        bytes: Vec<Byte>,
    },
}

#[derive(Debug, Clone)]
pub enum Answer {
    Status(Status),
    Wal {
        timeline: TimelineId,
        bytes: Vec<Byte>,
    },
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Gather,
    Promise,
    CatchUp,
    BeginEmpty,
    Skeleton,
    BeginRecord,
    /// Its server runs; it tells stores to receive.
    Running,
    Dead,
}

/// What the world has to do for a manager.
#[derive(Debug)]
pub enum Command {
    Send {
        store: usize,
        serial: u32,
        request: Request,
    },
    /// The timeline began on a quorum, at the end of `wal`.
    Chose {
        timeline: TimelineId,
        wal: Vec<Byte>,
    },
    Launch,
}

#[derive(Debug)]
pub struct Manager {
    pub id: u16,
    pub step: Step,
    pub timeline: TimelineId,
    /// The chosen history up to its end, as read for the data directory.
    pub wal: Vec<Byte>,
    pub record: Vec<Byte>,
    pub primary: Option<usize>,
    pub commands: Vec<Command>,
    quorum: usize,
    stores: usize,
    weakness: Option<Weakness>,
    serial: u32,
    waiting: BTreeMap<usize, u32>,
    answered: Vec<(usize, Status)>,
    chosen: Option<(usize, Status)>,
    members: Vec<usize>,
    behind: VecDeque<(usize, Status)>,
    copied: Lsn,
}

impl Manager {
    pub fn new(id: u16, stores: usize, quorum: usize, weakness: Option<Weakness>) -> Manager {
        let mut manager = Manager {
            id,
            step: Step::Gather,
            timeline: TimelineId(0),
            wal: Vec::new(),
            record: crate::wal::record(id, 0, 3),
            primary: None,
            commands: Vec::new(),
            quorum,
            stores,
            weakness,
            serial: 0,
            waiting: BTreeMap::new(),
            answered: Vec::new(),
            chosen: None,
            members: Vec::new(),
            behind: VecDeque::new(),
            copied: Lsn::INVALID,
        };
        for store in 0..stores {
            manager.send(store, Request::Status);
        }
        manager
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn is_starting(&self) -> bool {
        !matches!(self.step, Step::Running | Step::Dead)
    }

    /// Where the timeline begins.
    pub fn end(&self) -> Lsn {
        self.chosen
            .as_ref()
            .map_or(Lsn::INVALID, |(_, status)| status.record_end)
    }

    /// The history that its server continues.
    pub fn target(&self) -> Option<History> {
        let (_, status) = self.chosen.as_ref()?;
        status.history.branch(self.timeline, status.record_end).ok()
    }

    fn send(&mut self, store: usize, request: Request) {
        self.serial += 1;
        let serial = self.serial;
        self.waiting.insert(store, serial);
        self.commands.push(Command::Send {
            store,
            serial,
            request,
        });
    }

    /// Stops waiting for the answers that have not come.
    pub fn give_up_waiting(&mut self) {
        self.waiting.clear();
        self.proceed();
    }

    pub fn answer(&mut self, store: usize, serial: u32, answer: Answer) {
        if self.waiting.get(&store) != Some(&serial) {
            return;
        }
        self.waiting.remove(&store);
        match (self.step, answer) {
            (Step::Gather | Step::Promise, Answer::Status(status)) => {
                self.answered.push((store, status));
            }
            (Step::Promise, Answer::Refused) => self.die(),
            (Step::CatchUp, answer) => self.copied(answer),
            (Step::BeginEmpty | Step::BeginRecord, Answer::Status(_)) => self.members.push(store),
            _ => {}
        }
        if self.waiting.is_empty() {
            self.proceed();
        }
    }

    pub fn die(&mut self) {
        self.step = Step::Dead;
        self.waiting.clear();
        self.commands.clear();
    }

    /// Every answer that will be waited for is there.
    fn proceed(&mut self) {
        let needed = promises_needed(self.stores, self.quorum);
        match self.step {
            Step::Gather if self.answered.len() >= needed => {
                let highest = self.answered.iter();
                let highest = highest
                    .map(|(_, it)| it.promised.max(it.history.timeline()))
                    .max();
                self.timeline = highest.unwrap_or_default().next();
                self.step = Step::Promise;
                for (store, _) in std::mem::take(&mut self.answered) {
                    self.send(store, Request::Promise(self.timeline));
                }
            }
            Step::Promise if self.answered.len() >= needed => self.choose(),
            // The one that did not answer stays behind.
            Step::CatchUp => {
                self.behind.pop_front();
                self.catch_up_next();
            }
            Step::BeginEmpty if self.members.len() >= self.quorum => self.begun(),
            Step::BeginRecord if self.members.len() >= self.quorum => {
                if self.weakness == Some(Weakness::CountCatchUp) {
                    self.chose();
                }
                self.step = Step::Running;
                self.commands.push(Command::Launch);
            }
            Step::Skeleton | Step::Running | Step::Dead => {}
            _ => self.die(),
        }
    }

    fn choose(&mut self) {
        let by_end_only = self.weakness == Some(Weakness::LongestLog);
        let candidate = |(_, status): &(usize, Status)| Candidate {
            timeline: if by_end_only {
                TimelineId(0)
            } else {
                status.history.timeline()
            },
            record_end: status.record_end,
        };
        let candidates: Vec<Candidate> = self.answered.iter().map(candidate).collect();
        let Some(best) = choose_history(&candidates) else {
            return self.die();
        };
        let chosen = self.answered.swap_remove(best);
        self.members = vec![chosen.0];
        self.behind = self.answered.drain(..).collect();
        self.wal.clone_from(&chosen.1.wal);
        self.chosen = Some(chosen);
        self.step = Step::CatchUp;
        self.catch_up_next();
    }

    fn catch_up_next(&mut self) {
        let Some((source, chosen)) = self.chosen.clone() else {
            return self.die();
        };
        while let Some((store, status)) = self.behind.front() {
            if status.history == chosen.history && status.record_end == chosen.record_end {
                self.members.push(*store);
                self.behind.pop_front();
                continue;
            }
            let end = chosen.record_end;
            let lacks = missing(&chosen.history, end, &status.history, status.record_end);
            self.copied = lacks.from;
            return self.read_or_finish(source);
        }
        if self.members.len() < self.quorum {
            return self.die();
        }
        if self.weakness == Some(Weakness::CountCatchUp) {
            self.step = Step::Skeleton;
        } else {
            self.begin(Step::BeginEmpty, Vec::new());
        }
    }

    fn read_or_finish(&mut self, source: usize) {
        let left = index(self.end()) - index(self.copied);
        if left > 0 {
            let from = self.copied;
            self.send(
                source,
                Request::Read {
                    from,
                    len: left.min(7),
                },
            );
        } else {
            self.write(Vec::new());
        }
    }

    fn write(&mut self, bytes: Vec<Byte>) {
        let (Some((_, chosen)), Some((store, _))) = (&self.chosen, self.behind.front()) else {
            return self.die();
        };
        let (target, at, store) = (chosen.history.clone(), self.copied, *store);
        self.copied = self.copied.advance(bytes.len() as u64);
        self.send(
            store,
            Request::Write {
                promised: self.timeline,
                target,
                at,
                bytes,
            },
        );
    }

    fn copied(&mut self, answer: Answer) {
        let Some((source, chosen)) = self.chosen.clone() else {
            return self.die();
        };
        match answer {
            Answer::Wal { timeline, bytes } => {
                // Another timeline: somebody else has had this store go on with another history.
                if !bytes.is_empty() && timeline == chosen.history.timeline() {
                    self.write(bytes);
                }
            }
            Answer::Status(_) if self.copied >= chosen.record_end => {
                if let Some((store, _)) = self.behind.pop_front() {
                    self.members.push(store);
                }
                self.catch_up_next();
            }
            Answer::Status(_) => self.read_or_finish(source),
            Answer::Refused => {}
        }
    }

    fn begin(&mut self, step: Step, bytes: Vec<Byte>) {
        let Some(target) = self.target() else {
            return self.die();
        };
        self.step = step;
        for store in std::mem::take(&mut self.members) {
            self.send(
                store,
                Request::Begin {
                    target: target.clone(),
                    bytes: bytes.clone(),
                },
            );
        }
    }

    fn chose(&mut self) {
        let wal = self.wal.clone();
        self.commands.push(Command::Chose {
            timeline: self.timeline,
            wal,
        });
    }

    fn begun(&mut self) {
        self.chose();
        self.step = Step::Skeleton;
    }

    /// The storage node has reached the begin.
    pub fn skeleton_is_there(&mut self) {
        self.begin(Step::BeginRecord, self.record.clone());
    }
}
