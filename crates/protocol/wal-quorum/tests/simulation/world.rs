//! Everything together, and chance deciding what happens next.

macro_rules! note {
    ($world:expr, $($arg:tt)*) => {
        if let Some(trace) = &mut $world.trace {
            trace.push(format!("{:5} {}", $world.steps, format_args!($($arg)*)));
        }
    };
}

mod servers;

use pg_types::{Lsn, TimelineId};
use wal_quorum::{Fence, History, Position};

use crate::invariants::{Choice, Invariants, Settled, liveness};
use crate::manager::{Answer, Command, Manager, Request, Step};
use crate::prng::Prng;
use crate::store::Store;
use crate::wal::{Byte, index, lsn, record};
use crate::weakness::Weakness;

/// Steps with faults in a run.
const FAULTY_STEPS: usize = 1000;

/// How often each event happens without faults: the order is that of [`World::step`].
const CALM: [usize; 14] = [400, 120, 80, 50, 40, 50, 60, 40, 30, 10, 0, 0, 0, 0];

/// And with faults; every run makes some of them rarer and some more frequent, since what goes wrong
/// often needs much of one thing and little of another.
const FAULTY: [usize; 14] = [400, 120, 80, 50, 40, 50, 40, 40, 30, 15, 8, 4, 8, 15];

/// Messages on their way; beyond that the network loses some.
const NET_CAPACITY: usize = 24;

/// A message on its way; any of them may come next, or never.
#[derive(Debug, Clone)]
enum Envelope {
    Request {
        manager: usize,
        store: usize,
        serial: u32,
        request: Request,
    },
    Answer {
        manager: usize,
        store: usize,
        serial: u32,
        answer: Answer,
    },
    Receive {
        store: usize,
        primary: usize,
    },
    Flushed {
        primary: usize,
        store: usize,
        at: usize,
    },
    Position {
        to: usize,
        from: usize,
        position: Position,
    },
}

/// A server.
#[derive(Debug)]
pub struct Primary {
    pub timeline: TimelineId,
    history: History,
    wal: Vec<Byte>,
    writer: u16,
    records: u16,
    alive: bool,
    flushed: Vec<usize>,
    /// End of the last record that a quorum has, as this server counts.
    pub acknowledged: usize,
}

/// What the storage node has ingested, and the timeline that it follows.
#[derive(Debug)]
pub struct Storage {
    pub wal: Vec<Byte>,
    timeline: TimelineId,
}

/// What a run did, to see that runs do something.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub timelines: usize,
    pub acknowledged: usize,
    pub ingested: usize,
    pub crashes: usize,
    pub rewinds: usize,
}

#[derive(Debug)]
pub struct World {
    pub stores: Vec<Store>,
    pub managers: Vec<Manager>,
    pub primaries: Vec<Primary>,
    pub storage: Storage,
    pub tally: Tally,
    quorum: usize,
    weakness: Option<Weakness>,
    chance: Prng,
    net: Vec<Envelope>,
    invariants: Invariants,
    faults: bool,
    weights: [usize; 14],
    trace: Option<Vec<String>>,
    steps: usize,
}

type Outcome = Result<(), String>;

impl World {
    pub fn new(seed: u64, stores: usize, quorum: usize, weakness: Option<Weakness>) -> World {
        let mut chance = Prng::new(seed);
        let weights = FAULTY.map(|weight| weight * [1, 4, 4, 16][chance.below(4)]);
        let base = record(0, 0, 4);
        World {
            stores: vec![Store::new(&base, stores, weakness); stores],
            managers: Vec::new(),
            primaries: Vec::new(),
            storage: Storage {
                wal: base,
                timeline: TimelineId(1),
            },
            tally: Tally::default(),
            quorum,
            weakness,
            chance,
            net: Vec::new(),
            invariants: Invariants::default(),
            faults: true,
            weights,
            trace: None,
            steps: 0,
        }
    }

    pub fn traced(mut self) -> World {
        self.trace = Some(Vec::new());
        self
    }

    pub fn take_trace(&mut self) -> String {
        self.trace.take().unwrap_or_default().join("\n")
    }

    /// A safety phase under faults, then a liveness phase without.
    pub fn run(&mut self) -> Outcome {
        for _ in 0..FAULTY_STEPS {
            self.step()?;
        }
        self.faults = false;
        note!(self, "no more faults");
        for store in 0..self.stores.len() {
            self.stores[store].up = true;
        }
        for manager in self.managers.iter_mut().filter(|it| it.is_starting()) {
            manager.die();
        }
        let since = self.managers.len();
        for _ in 0..liveness::PATIENCE {
            if liveness::reached(self, since) {
                return Ok(());
            }
            if !self
                .managers
                .iter()
                .skip(since)
                .any(|it| it.step != Step::Dead)
            {
                self.start_manager();
            }
            self.step()?;
        }
        Err(format!(
            "liveness: nothing committed within {} steps",
            liveness::PATIENCE
        ))
    }

    fn step(&mut self) -> Outcome {
        self.steps += 1;
        let store = self.chance.below(self.stores.len());
        let weights = if self.faults { self.weights } else { CALM };
        let mut drawn = self.chance.below(weights.iter().sum());
        let event = weights.iter().position(|weight| {
            let hit = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            hit
        });
        match event.unwrap_or(0) {
            0 => self.deliver()?,
            1 => self.pump(store)?,
            2 => self.flush(store)?,
            3 => self.tell_position(store),
            4 => self.emit(),
            5 => self.ingest(store)?,
            6 => self.care(),
            7 => self.look_at_skeletons()?,
            8 => self.restart(store)?,
            9 => self.time_out()?,
            10 => self.lose(),
            11 => self.crash(store),
            12 => self.kill(),
            _ if self.managers.iter().filter(|it| it.is_starting()).count() < 3 => {
                self.start_manager();
            }
            _ => {}
        }
        Ok(())
    }

    fn start_manager(&mut self) {
        let id = self.managers.len() as u16 + 1;
        note!(self, "manager {id} starts");
        let manager = Manager::new(id, self.stores.len(), self.quorum, self.weakness);
        self.managers.push(manager);
        let _ = self.obey(self.managers.len() - 1);
    }

    /// Carries out what a manager wants done.
    fn obey(&mut self, manager: usize) -> Outcome {
        for command in std::mem::take(&mut self.managers[manager].commands) {
            match command {
                Command::Send {
                    store,
                    serial,
                    request,
                } => {
                    self.net.push(Envelope::Request {
                        manager,
                        store,
                        serial,
                        request,
                    });
                }
                Command::Chose { timeline, wal } => {
                    note!(self, "timeline {timeline} begins at {}", wal.len());
                    self.tally.timelines += 1;
                    self.invariants.chose(Choice { timeline, wal })?;
                }
                Command::Launch => self.launch(manager),
            }
        }
        Ok(())
    }

    fn deliver(&mut self) -> Outcome {
        if self.net.is_empty() {
            return Ok(());
        }
        while self.net.len() > NET_CAPACITY {
            let at = self.chance.below(self.net.len());
            let repeated = matches!(
                self.net[at],
                Envelope::Flushed { .. } | Envelope::Position { .. }
            );
            if !self.faults && !repeated {
                break;
            }
            self.net.swap_remove(at);
        }
        // Rather a young message, so that a few can grow old without everything else doing so.
        let mut at = self.chance.below(self.net.len());
        if self.faults {
            at = at.max(self.chance.below(self.net.len()));
        }
        match self.net.remove(at) {
            Envelope::Request {
                manager,
                store,
                serial,
                request,
            } if self.stores[store].up => {
                let answer = self.carry_out(store, request)?;
                self.net.push(Envelope::Answer {
                    manager,
                    store,
                    serial,
                    answer,
                });
            }
            Envelope::Answer {
                manager,
                store,
                serial,
                answer,
            } => {
                self.managers[manager].answer(store, serial, answer);
                self.obey(manager)?;
            }
            Envelope::Receive { store, primary } if self.stores[store].up => {
                let timeline = self.primaries[primary].timeline;
                let outcome = self.stores[store].receive(primary, timeline);
                note!(self, "store {store} is to receive {timeline}: {outcome:?}");
            }
            Envelope::Flushed { primary, store, at } => self.acknowledge(primary, store, at)?,
            Envelope::Position { to, from, position } if self.stores[to].up => {
                self.stores[to].peers[from] = Some(position);
                self.watch(to)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, store: usize, request: Request) -> Result<Answer, String> {
        let it = &mut self.stores[store];
        let before = it.flushed();
        let (what, outcome) = match request {
            Request::Status => ("status", Ok(())),
            Request::Promise(timeline) => {
                let outcome = it.promise(timeline);
                if outcome.is_ok() {
                    self.invariants.fencing.promised(store, timeline);
                }
                ("promise", outcome)
            }
            Request::Read { from, len } => {
                let bytes = it.wal.iter().skip(index(from)).take(len).copied().collect();
                return Ok(Answer::Wal {
                    timeline: it.timeline(),
                    bytes,
                });
            }
            Request::Write {
                promised,
                target,
                at,
                bytes,
            } => ("write", it.write_wal(promised, &target, at, &bytes)),
            Request::Begin { target, bytes } => ("begin", it.begin(&target, &bytes)),
        };
        let it = &self.stores[store];
        self.tally.rewinds += usize::from(it.flushed() < before);
        note!(self, "store {store}: {what} {outcome:?}: {}", place(it));
        self.watch(store)?;
        Ok(match outcome {
            Ok(()) => Answer::Status(self.stores[store].status()),
            Err(_) => Answer::Refused,
        })
    }

    /// After anything that changed a store: its quorum LSN, and what it serves.
    fn watch(&mut self, store: usize) -> Outcome {
        let it = &mut self.stores[store];
        if let Some(end) = it.recompute(self.quorum) {
            let (timeline, wal) = (it.timeline(), it.wal[..index(end)].to_vec());
            note!(self, "store {store} serves up to {}", end.0);
            self.invariants.serve(Settled { timeline, wal })?;
        }
        let it = &self.stores[store];
        self.invariants.one_history.still_serves(&it.wal, it.quorum)
    }

    /// One step of a store's session: catching up from a peer, or receiving from the server.
    fn pump(&mut self, store: usize) -> Outcome {
        let Some(session) = self.stores[store].session.filter(|_| self.stores[store].up) else {
            return Ok(());
        };
        let primary = &self.primaries[session.primary];
        if !primary.alive {
            return Ok(());
        }
        let len = 1 + self.chance.below(9);
        if self.stores[store].timeline() == session.timeline {
            self.stores[store].take(&primary.wal, len);
            return Ok(());
        }
        let target = primary.history.clone();
        let peer = self.chance.below(self.stores.len());
        let bytes = self.peer_bytes(store, peer, &target, len);
        let it = &mut self.stores[store];
        let before = it.flushed();
        let outcome = it.catch_up(&target, &bytes);
        if outcome.is_err() {
            it.session = None;
        }
        let it = &self.stores[store];
        self.tally.rewinds += usize::from(it.flushed() < before);
        note!(self, "store {store}: catch up {outcome:?}: {}", place(it));
        self.watch(store)
    }

    /// What a peer streams to a store that follows `target`: durable WAL, to the end of the store's
    /// timeline as the peer knows it.
    fn peer_bytes(&self, store: usize, peer: usize, target: &History, len: usize) -> Vec<Byte> {
        let (it, peer) = (&self.stores[store], &self.stores[peer]);
        let end = peer.history.end_of(it.timeline()).filter(|_| {
            let shared = target.common_end(&it.history) >= it.flushed();
            peer.up && shared && target.contains(peer.timeline())
        });
        let Some((end, _)) = end else {
            return Vec::new();
        };
        let to = index(end).min(peer.wal.len());
        peer.wal
            .iter()
            .take(to)
            .skip(it.wal.len())
            .take(len)
            .copied()
            .collect()
    }

    fn flush(&mut self, store: usize) -> Outcome {
        let it = &mut self.stores[store];
        let Some(session) = it.session.filter(|_| it.up) else {
            return Ok(());
        };
        // Nothing new is reported now and then only.
        if it.buffer.is_empty() && self.chance.below(4) > 0 {
            return Ok(());
        }
        let Ok(flushed) = it.flush(session.timeline) else {
            return Ok(());
        };
        self.invariants
            .fencing
            .acknowledges(store, session.timeline)?;
        let at = index(flushed);
        note!(self, "store {store} flushed {at} on {}", session.timeline);
        self.net.push(Envelope::Flushed {
            primary: session.primary,
            store,
            at,
        });
        self.watch(store)
    }

    fn tell_position(&mut self, from: usize) {
        let to = self.chance.below(self.stores.len());
        let it = &self.stores[from];
        if it.up && to != from && self.announces(it.fence, it.timeline()) {
            let position = Position {
                timeline: it.timeline(),
                flushed: it.flushed(),
            };
            self.net.push(Envelope::Position { to, from, position });
        }
    }

    fn announces(&self, fence: Fence, timeline: TimelineId) -> bool {
        fence.counts(timeline) || self.weakness == Some(Weakness::CountCatchUp)
    }

    fn look_at_skeletons(&mut self) -> Outcome {
        for manager in 0..self.managers.len() {
            let it = &mut self.managers[manager];
            if it.step == Step::Skeleton && lsn(self.storage.wal.len()) >= it.end() {
                // More than the begin means that somebody else was first.
                if lsn(self.storage.wal.len()) == it.end() {
                    it.skeleton_is_there();
                } else {
                    it.die();
                }
                self.obey(manager)?;
            }
        }
        Ok(())
    }

    fn any_manager(&mut self, wanted: impl Fn(&Manager) -> bool) -> Option<usize> {
        let found = (0..self.managers.len()).filter(|it| wanted(&self.managers[*it]));
        let found: Vec<usize> = found.collect();
        found.get(self.chance.below(found.len())).copied()
    }

    /// A manager's patience ends: sooner or later with faults, only over lost messages without.
    fn time_out(&mut self) -> Outcome {
        let Some(manager) = self.any_manager(Manager::is_waiting) else {
            return Ok(());
        };
        let on_its_way = |it: &Envelope| match it {
            Envelope::Request { manager: of, .. } | Envelope::Answer { manager: of, .. } => {
                *of == manager
            }
            _ => false,
        };
        let hopeless = !self.net.iter().any(on_its_way);
        if self.faults || hopeless {
            note!(
                self,
                "manager {} waits no longer",
                self.managers[manager].id
            );
            self.managers[manager].give_up_waiting();
            self.obey(manager)?;
        }
        Ok(())
    }

    fn lose(&mut self) {
        if !self.net.is_empty() {
            let at = self.chance.below(self.net.len());
            self.net.swap_remove(at);
        }
    }

    fn crash(&mut self, store: usize) {
        let (kept, forgotten) = (self.chance.up_to(12), self.chance.up_to(4));
        if self.stores[store].up {
            self.stores[store].crash(kept, forgotten);
            self.tally.crashes += 1;
            note!(
                self,
                "store {store} crashes: {}",
                place(&self.stores[store])
            );
        }
    }

    fn restart(&mut self, store: usize) -> Outcome {
        self.stores[store].up = true;
        self.watch(store)
    }

    /// A manager dies, or a server; the other may live on.
    fn kill(&mut self) {
        let at = self.chance.below(self.managers.len());
        let Some(it) = self.managers.get_mut(at) else {
            return;
        };
        let primary = it.primary;
        match (self.chance.below(3), primary) {
            (0, Some(primary)) => {
                note!(self, "server {primary} dies");
                self.primaries[primary].alive = false;
            }
            _ => {
                note!(self, "manager {} dies", it.id);
                it.die();
            }
        }
    }
}

fn place(store: &Store) -> String {
    let starts = store.history.starts().iter();
    let starts: Vec<String> = starts
        .map(|it| format!("{}@{}", it.timeline, it.begin.0))
        .collect();
    let Lsn(flushed) = store.flushed();
    format!(
        "{flushed} on {}, promised {}",
        starts.join(","),
        store.fence.promised()
    )
}
