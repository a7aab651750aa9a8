//! The world: what stores, primaries and the manager do in one step.

use std::collections::BTreeMap;

use pg_types::{Lsn, TimelineId};
use wal_quorum::{
    Candidate, Fence, History, Position, choose_history, missing, promises_needed, quorum_lsn,
};

use crate::random::Random;

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub stores: usize,
    pub quorum: usize,
}

/// One byte of WAL: who wrote it, and whether a record ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Byte {
    pub value: u64,
    pub ends_record: bool,
}

/// What a store has on disk, and what is only in its memory.
#[derive(Debug, Clone)]
pub struct Store {
    pub up: bool,
    pub fence: Fence,
    pub history: History,
    /// WAL as written; the first `synced` bytes are durable.
    pub wal: Vec<Byte>,
    pub synced: usize,
    /// Highest quorum LSN it computed since it started.
    pub quorum: Lsn,
    /// What it last heard of its peers; forgotten in a crash.
    pub heard: BTreeMap<usize, Position>,
}

impl Store {
    fn new(first: Byte) -> Store {
        Store {
            up: true,
            fence: Fence::new(TimelineId(1)),
            history: History::root(TimelineId(1)),
            wal: vec![first],
            synced: 1,
            quorum: Lsn(0),
            heard: BTreeMap::new(),
        }
    }

    pub fn flushed(&self) -> Lsn {
        Lsn(self.synced as u64)
    }

    /// End of the last whole durable record.
    pub fn record_end(&self) -> Lsn {
        let durable = self.wal.iter().take(self.synced);
        let last = durable
            .enumerate()
            .filter(|(_, byte)| byte.ends_record)
            .last();
        Lsn(last.map_or(0, |(index, _)| index as u64 + 1))
    }

    fn crash(&mut self, random: &mut Random) {
        self.up = false;
        // Some of what was not synced may have reached the disk, in order.
        let extra = (self.wal.len() - self.synced) as u64;
        let kept = self.synced + random.below(extra + 1) as usize;
        self.wal.truncate(kept);
        self.synced = kept;
        self.quorum = Lsn(0);
        self.heard.clear();
    }

    /// Cuts off what is not part of `chosen`, up to `end`.
    fn adopt(&mut self, chosen: &History, end: Lsn) {
        let keep = missing(chosen, end, &self.history, self.flushed()).from;
        self.wal.truncate(keep.0 as usize);
        self.synced = self.wal.len();
        self.history = chosen.up_to(keep);
    }
}

/// A running server; it does not know when it has been replaced.
#[derive(Debug, Clone)]
pub struct Primary {
    pub timeline: TimelineId,
    pub wal: Vec<Byte>,
    /// Flush positions reported by the stores.
    reported: Vec<Lsn>,
    /// Everything up to here was acknowledged to clients.
    pub acknowledged: Lsn,
}

/// A message on its way.
#[derive(Debug, Clone)]
enum Message {
    /// WAL from a primary to a store; it answers with its flush position after syncing.
    Wal {
        primary: usize,
        store: usize,
        at: usize,
        bytes: Vec<Byte>,
    },
    /// A flush position on its way back.
    Flushed {
        primary: usize,
        store: usize,
        at: Lsn,
    },
    /// A store telling a peer how far it is.
    Peer {
        from: usize,
        to: usize,
        position: Position,
    },
}

pub struct World {
    pub settings: Settings,
    pub stores: Vec<Store>,
    pub primaries: Vec<Primary>,
    pub trace: Vec<String>,
    pub partial_begins: u64,
    /// For the test that shows what goes wrong without a majority.
    pub promises_override: Option<usize>,
    messages: Vec<Message>,
    random: Random,
    next_value: u64,
    next_timeline: u32,
    begun: u64,
}

impl World {
    pub fn new(seed: u64, settings: Settings) -> World {
        let first = Byte {
            value: 0,
            ends_record: true,
        };
        World {
            settings,
            stores: vec![Store::new(first); settings.stores],
            primaries: vec![Primary {
                timeline: TimelineId(1),
                wal: vec![first],
                reported: vec![Lsn(0); settings.stores],
                acknowledged: Lsn(0),
            }],
            trace: Vec::new(),
            partial_begins: 0,
            promises_override: None,
            messages: Vec::new(),
            random: Random::new(seed),
            next_value: 1,
            next_timeline: 2,
            begun: 1,
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.primaries
            .iter()
            .map(|primary| primary.acknowledged.0)
            .max()
            .unwrap_or(0)
    }

    pub fn timelines_begun(&self) -> u64 {
        self.begun
    }

    pub fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.write(),
            25..=44 => self.send(),
            45..=76 => self.deliver(),
            77..=86 => self.tell_peer(),
            87..=90 => self.lose(),
            91..=93 => self.crash_store(),
            94..=96 => self.restart_store(),
            _ => self.begin_timeline(),
        }
    }

    fn note(&mut self, text: String) {
        self.trace.push(text);
    }

    fn pick(&mut self, count: usize) -> usize {
        self.random.below(count as u64) as usize
    }

    /// The newest primary mostly, an old one sometimes: it has not noticed that it was replaced.
    fn some_primary(&mut self) -> usize {
        let last = self.primaries.len() - 1;
        if self.random.one_in(4) {
            self.pick(last + 1)
        } else {
            last
        }
    }

    fn write(&mut self) {
        let index = self.some_primary();
        let len = 1 + self.random.below(4);
        for n in 0..len {
            let byte = Byte {
                value: self.next_value,
                ends_record: n + 1 == len,
            };
            self.next_value += 1;
            self.primaries[index].wal.push(byte);
        }
        self.note(format!("primary {index} writes {len}"));
    }

    /// A primary sends a store what follows its reported flush position, or a part of it.
    fn send(&mut self) {
        let (primary, store) = (self.some_primary(), self.pick(self.settings.stores));
        let source = &self.primaries[primary];
        let target = &self.stores[store];
        // A session begins where the store says it is: only on the primary's own timeline.
        if !target.up || target.history.timeline() != source.timeline {
            return;
        }
        let at = target.wal.len();
        let available = source.wal.len().saturating_sub(at) as u64;
        if available == 0 {
            return;
        }
        let len = 1 + self.random.below(available) as usize;
        let bytes = self.primaries[primary].wal[at..at + len].to_vec();
        self.note(format!(
            "primary {primary} sends {len} at {at} to store {store}"
        ));
        self.messages.push(Message::Wal {
            primary,
            store,
            at,
            bytes,
        });
    }

    fn deliver(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let index = self.pick(self.messages.len());
        match self.messages.swap_remove(index) {
            Message::Wal {
                primary,
                store,
                at,
                bytes,
            } => self.store_wal(primary, store, at, &bytes),
            Message::Flushed { primary, store, at } => {
                let quorum = self.settings.quorum;
                let primary = &mut self.primaries[primary];
                primary.reported[store] = primary.reported[store].max(at);
                let mut reported = primary.reported.clone();
                reported.sort_unstable();
                let reached = reported[reported.len() - quorum];
                // Commits are acknowledged at the ends of whole records.
                let ends = primary.wal.iter().enumerate().take(reached.0 as usize);
                let end = ends.filter(|(_, byte)| byte.ends_record).last();
                let end = Lsn(end.map_or(0, |(index, _)| index as u64 + 1));
                primary.acknowledged = primary.acknowledged.max(end);
            }
            Message::Peer { from, to, position } => {
                if self.stores[to].up {
                    self.stores[to].heard.insert(from, position);
                    self.recompute_quorum(to);
                }
            }
        }
    }

    fn store_wal(&mut self, primary: usize, index: usize, at: usize, bytes: &[Byte]) {
        let timeline = self.primaries[primary].timeline;
        let store = &mut self.stores[index];
        if !store.up || store.fence.admit(timeline).is_err() {
            return;
        }
        if store.history.timeline() != timeline || at > store.wal.len() {
            return;
        }
        let known = store.wal.len() - at;
        store.wal.extend(bytes.iter().skip(known));
        // Sometimes it dies before the sync: then nothing is reported.
        if self.random.one_in(12) {
            return;
        }
        store.synced = store.wal.len();
        let at = store.flushed();
        self.note(format!("store {index} has {at} of primary {primary}"));
        self.messages.push(Message::Flushed {
            primary,
            store: index,
            at,
        });
        self.recompute_quorum(index);
    }

    fn recompute_quorum(&mut self, index: usize) {
        let store = &mut self.stores[index];
        let heard = store.heard.values().copied();
        let lsn = quorum_lsn(&store.history, store.flushed(), heard, self.settings.quorum);
        let lsn = lsn.min(store.flushed());
        let ends = store.wal.iter().enumerate().take(lsn.0 as usize);
        let end = ends.filter(|(_, byte)| byte.ends_record).last();
        store.quorum = store
            .quorum
            .max(Lsn(end.map_or(0, |(index, _)| index as u64 + 1)));
    }

    fn tell_peer(&mut self) {
        let (from, to) = (
            self.pick(self.settings.stores),
            self.pick(self.settings.stores),
        );
        if from == to || !self.stores[from].up {
            return;
        }
        let store = &self.stores[from];
        let position = Position {
            timeline: store.history.timeline(),
            flushed: store.flushed(),
        };
        self.messages.push(Message::Peer { from, to, position });
    }

    fn lose(&mut self) {
        if !self.messages.is_empty() {
            let index = self.pick(self.messages.len());
            self.messages.swap_remove(index);
        }
    }

    fn crash_store(&mut self) {
        let index = self.pick(self.settings.stores);
        self.stores[index].crash(&mut self.random);
        self.note(format!("store {index} crashes"));
    }

    fn restart_store(&mut self) {
        let index = self.pick(self.settings.stores);
        self.stores[index].up = true;
        self.recompute_quorum(index);
        self.note(format!("store {index} is up"));
    }

    /// A manager begins the next timeline, and may die after any of its steps.
    fn begin_timeline(&mut self) {
        let dies_after = if self.random.one_in(3) {
            self.random.below(4)
        } else {
            u64::MAX
        };
        let timeline = TimelineId(self.next_timeline);
        self.next_timeline += 1;
        let mut promised = Vec::new();
        for index in 0..self.settings.stores {
            // A store may not be reached although it is up.
            let reached = self.stores[index].up && !self.random.one_in(6);
            if let Some(store) = self.stores.get_mut(index)
                && reached
                && let Ok(fence) = store.fence.promise(timeline)
            {
                store.fence = fence;
                store.wal.truncate(store.synced);
                promised.push(index);
            }
        }
        let needed = promises_needed(self.settings.stores, self.settings.quorum);
        if promised.len() < self.promises_override.unwrap_or(needed) || dies_after == 0 {
            self.note(format!("{timeline}: promised by {promised:?} only"));
            return;
        }
        let candidates: Vec<Candidate> = promised
            .iter()
            .map(|index| Candidate {
                timeline: self.stores[*index].history.timeline(),
                record_end: self.stores[*index].record_end(),
            })
            .collect();
        let Some(chosen) = choose_history(&candidates).map(|nth| promised[nth]) else {
            return;
        };
        let end = self.stores[chosen].record_end();
        let (history, wal) = (
            self.stores[chosen].history.clone(),
            self.stores[chosen].wal.clone(),
        );
        let wal: Vec<Byte> = wal[..end.0 as usize].to_vec();
        self.note(format!(
            "{timeline}: promised by {promised:?}, continues {chosen} at {end}"
        ));
        self.bring_up(&promised, &history, end, &wal, dies_after == 1);
        if dies_after <= 1 {
            return;
        }
        self.begin_on(&promised, timeline, &history, end, wal, dies_after == 2);
    }

    /// Laggards get what they lack; a manager that dies gives it to the first only.
    fn bring_up(
        &mut self,
        promised: &[usize],
        history: &History,
        end: Lsn,
        wal: &[Byte],
        dies: bool,
    ) {
        let count = if dies { 1 } else { promised.len() };
        for index in promised.iter().take(count) {
            let store = &mut self.stores[*index];
            let lacks = missing(history, end, &store.history, store.flushed());
            if lacks.from == lacks.to {
                continue;
            }
            store.adopt(history, end);
            store.wal.extend(wal.iter().skip(store.synced));
            store.synced = store.wal.len();
            store.history = history.clone();
        }
    }

    fn begin_on(
        &mut self,
        promised: &[usize],
        timeline: TimelineId,
        history: &History,
        end: Lsn,
        mut wal: Vec<Byte>,
        dies: bool,
    ) {
        let Ok(next) = history.branch(timeline, end) else {
            return;
        };
        // The checkpoint record.
        wal.push(Byte {
            value: self.next_value,
            ends_record: true,
        });
        self.next_value += 1;
        let count = if dies { 1 } else { promised.len() };
        for index in promised.iter().take(count) {
            let store = &mut self.stores[*index];
            store.adopt(&next, end);
            store.wal.extend(wal.iter().skip(store.wal.len()));
            store.synced = store.wal.len();
            store.history = next.clone();
        }
        for index in promised.iter().take(count) {
            self.recompute_quorum(*index);
        }
        self.begun += 1;
        if count < self.settings.quorum {
            self.partial_begins += 1;
            self.note(format!("{timeline} was begun by {count} only"));
            return;
        }
        self.primaries.push(Primary {
            timeline,
            wal,
            reported: vec![Lsn(0); self.settings.stores],
            acknowledged: Lsn(0),
        });
        self.note(format!("{timeline} runs from {end}"));
    }
}
