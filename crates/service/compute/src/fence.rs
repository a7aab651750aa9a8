//! Taking over the log: promises, choice of history, catching up, beginning the timeline.
//!
//! **Invariant.** A server may run on a timeline only after (1) so many stores promised it that they
//! meet every quorum, so that no earlier server can have a commit acknowledged any more; (2) the
//! history with the highest (last timeline, end of last whole record) among them was chosen, which
//! contains every acknowledged commit; (3) that history was copied to a quorum and the timeline began
//! there, empty; (4) the record that continues it is durable on a quorum. Skipping any of them loses
//! an acknowledged commit when the next failure comes. Each choice is made by `wal-quorum`'s rules,
//! which are simulated there; here they meet real stores.

use std::time::{Duration, Instant};

use api::compute::LogStoreAddress;
use api::log::{LogRequest, LogStatus};
use pg_types::{Lsn, TimelineId};
use wal_quorum::{
    Candidate, History, HistoryError, TimelineStart, choose_history, missing, promises_needed,
};

use crate::stores::{LogStoreClient, StoreError};

/// Bytes of WAL carried from one store to another at a time.
const CHUNK: u32 = 8 << 20;

/// Why the log could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Too few stores answered.
    #[error("{answered} of {total} log stores answered and {needed} are needed; {last}")]
    TooFew {
        /// Stores that answered.
        answered: usize,
        /// Stores there are.
        total: usize,
        /// Stores needed.
        needed: usize,
        /// What the last one that did not answer met.
        last: String,
    },
    /// Two stores belong to different clusters.
    #[error(
        "{name} belongs to cluster {found}, not to {expected} (hint: each data directory has log stores of its own; put the right directory back)"
    )]
    OtherCluster {
        /// The store.
        name: String,
        /// Its system identifier.
        found: u64,
        /// The cluster's.
        expected: u64,
    },
    /// Another manager began a later timeline meanwhile.
    #[error("another incarnation was promised timeline {0} meanwhile")]
    Overtaken(TimelineId),
    /// The chosen history ends in nothing that can be continued.
    #[error("{name} has no whole record of WAL at all")]
    Empty {
        /// The store.
        name: String,
    },
    /// A store reports a history that is none.
    #[error("{name} reports a history that is damaged: {source}")]
    History {
        /// The store.
        name: String,
        /// What is wrong with it.
        #[source]
        source: HistoryError,
    },
    /// Too few stores could be brought up to the end of the chosen history.
    #[error("only {have} of {needed} log stores could be brought up to {end}; {last}")]
    CatchUp {
        /// Stores that are up to date.
        have: usize,
        /// Stores needed.
        needed: usize,
        /// The end of the chosen history.
        end: Lsn,
        /// What went wrong with the last one.
        last: String,
    },
    /// Too few stores began the timeline.
    #[error("only {have} of {needed} log stores began timeline {timeline}; {last}")]
    Begin {
        /// Stores that did.
        have: usize,
        /// Stores needed.
        needed: usize,
        /// The timeline.
        timeline: TimelineId,
        /// What went wrong with the last one.
        last: String,
    },
}

/// A log that has been taken over: nobody else can write to it any more.
#[derive(Debug)]
pub struct FencedLog {
    /// The timeline that was promised.
    pub timeline: TimelineId,
    /// State of the store whose history was chosen.
    pub chosen: LogStatus,
    /// Stores that have that history up to its last whole record.
    members: Vec<LogStoreClient>,
    quorum: usize,
    /// Whether the timeline has begun on the members.
    begun: bool,
}

struct Promised {
    client: LogStoreClient,
    status: LogStatus,
}

/// Fences every earlier server and brings a quorum to the end of the chosen history.
///
/// `patience` is how long to wait for stores that do not answer yet.
///
/// # Errors
/// [`FenceError`]; nothing is begun, the next attempt promises a higher timeline.
pub fn take_over(
    stores: &[LogStoreAddress],
    quorum: usize,
    system_identifier: u64,
    patience: Duration,
    timeout: Duration,
) -> Result<FencedLog, FenceError> {
    let needed = promises_needed(stores.len(), quorum);
    let (clients, statuses) = gather(stores, needed.max(quorum), patience, timeout)?;
    for status in &statuses {
        if status.system_identifier != system_identifier {
            return Err(FenceError::OtherCluster {
                name: status.name.clone(),
                found: status.system_identifier,
                expected: system_identifier,
            });
        }
    }
    let highest = statuses
        .iter()
        .map(|status| status.promised.max(status.timeline))
        .max();
    let timeline = highest.unwrap_or_default().next();
    let promised = promise(clients, timeline, needed, stores.len())?;
    let candidates: Vec<Candidate> = promised.iter().map(|one| candidate(&one.status)).collect();
    let best = choose_history(&candidates).unwrap_or(promised.len());
    let Some(chosen) = promised.get(best).map(|one| one.status.clone()) else {
        return Err(FenceError::TooFew {
            answered: 0,
            total: stores.len(),
            needed,
            last: String::new(),
        });
    };
    if !chosen.record_end.is_valid() {
        return Err(FenceError::Empty { name: chosen.name });
    }
    let members = catch_up(promised, best, &chosen, timeline, quorum)?;
    Ok(FencedLog {
        timeline,
        chosen,
        members,
        quorum,
        begun: false,
    })
}

/// Asks every store for its status until `needed` answered, and then a moment longer for the rest.
fn gather(
    stores: &[LogStoreAddress],
    needed: usize,
    patience: Duration,
    timeout: Duration,
) -> Result<(Vec<LogStoreClient>, Vec<LogStatus>), FenceError> {
    const LAGGARDS: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let mut enough_since: Option<Instant> = None;
    let mut last = String::new();
    let mut clients: Vec<LogStoreClient> = stores
        .iter()
        .map(|store| LogStoreClient::new(store, timeout))
        .collect();
    let mut statuses: Vec<LogStatus> = Vec::new();
    let mut answered: Vec<LogStoreClient> = Vec::new();
    loop {
        let mut silent = Vec::new();
        for mut client in clients {
            match client.status(&LogRequest::Status, &[]) {
                Ok(status) => {
                    statuses.push(status);
                    answered.push(client);
                }
                Err(error) => {
                    last = error.to_string();
                    silent.push(client);
                }
            }
        }
        clients = silent;
        if answered.len() >= needed && enough_since.is_none() {
            enough_since = Some(Instant::now());
        }
        let waited_enough = enough_since.is_some_and(|since| since.elapsed() >= LAGGARDS);
        if clients.is_empty() || waited_enough {
            return Ok((answered, statuses));
        }
        if enough_since.is_none() && begun.elapsed() >= patience {
            let (answered, total) = (answered.len(), stores.len());
            return Err(FenceError::TooFew {
                answered,
                total,
                needed,
                last,
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn promise(
    clients: Vec<LogStoreClient>,
    timeline: TimelineId,
    needed: usize,
    total: usize,
) -> Result<Vec<Promised>, FenceError> {
    let mut promised = Vec::new();
    let mut last = String::new();
    for mut client in clients {
        match client.status(&LogRequest::Promise { timeline }, &[]) {
            Ok(status) => promised.push(Promised { client, status }),
            Err(StoreError::Refused {
                fenced_by: Some(higher),
                ..
            }) => {
                return Err(FenceError::Overtaken(higher));
            }
            Err(error) => last = error.to_string(),
        }
    }
    if promised.len() < needed {
        return Err(FenceError::TooFew {
            answered: promised.len(),
            total,
            needed,
            last,
        });
    }
    Ok(promised)
}

/// How far a store's WAL goes, for [`choose_history`].
const fn candidate(status: &LogStatus) -> Candidate {
    Candidate {
        timeline: status.timeline,
        record_end: status.record_end,
    }
}

/// The history that a store reported.
fn history_of(status: &LogStatus) -> Result<History, FenceError> {
    let starts = status.history.iter().map(|start| TimelineStart {
        timeline: start.timeline,
        begin: start.begin,
    });
    History::new(starts.collect()).map_err(|source| FenceError::History {
        name: status.name.clone(),
        source,
    })
}

fn catch_up(
    promised: Vec<Promised>,
    best: usize,
    chosen: &LogStatus,
    timeline: TimelineId,
    quorum: usize,
) -> Result<Vec<LogStoreClient>, FenceError> {
    let history = history_of(chosen)?;
    let mut source = None;
    let mut behind = Vec::new();
    let mut members = Vec::new();
    for (index, one) in promised.into_iter().enumerate() {
        if index == best {
            source = Some(one.client);
        } else if one.status.history == chosen.history && one.status.record_end == chosen.record_end
        {
            members.push(one.client);
        } else {
            behind.push(one);
        }
    }
    let mut last = String::new();
    if let Some(mut source) = source {
        for mut one in behind {
            let copied = history_of(&one.status)
                .map_err(|error| error.to_string())
                .and_then(|theirs| {
                    let have = one.status.record_end;
                    let from = missing(&history, chosen.record_end, &theirs, have).from;
                    copy_wal(&mut source, &mut one, chosen, timeline, from)
                        .map_err(|error| error.to_string())
                });
            match copied {
                Ok(()) => members.push(one.client),
                Err(error) => {
                    tracing::warn!(store = one.client.name(), error, "could not catch up");
                    last = error;
                }
            }
        }
        members.insert(0, source);
    }
    if members.len() < quorum {
        return Err(FenceError::CatchUp {
            have: members.len(),
            needed: quorum,
            end: chosen.record_end,
            last,
        });
    }
    Ok(members)
}

fn copy_wal(
    source: &mut LogStoreClient,
    laggard: &mut Promised,
    chosen: &LogStatus,
    promised: TimelineId,
    from: Lsn,
) -> Result<(), StoreError> {
    let end = chosen.record_end;
    let mut at = from.max(chosen.oldest);
    loop {
        let want = u32::try_from(end.since(at)).unwrap_or(CHUNK).min(CHUNK);
        let bytes = if want == 0 {
            Vec::new()
        } else {
            source.read_wal(at, want, chosen.timeline)?
        };
        if bytes.is_empty() && want > 0 {
            return Err(StoreError::Refused {
                name: source.name().to_owned(),
                message: format!("has no WAL at {at}"),
                fenced_by: None,
            });
        }
        // Sent even when there is nothing to add: the store may have to learn the timeline.
        let request = LogRequest::WriteWal {
            promised,
            timeline: chosen.timeline,
            at,
            history: chosen.history_text.clone(),
        };
        laggard.client.status(&request, &bytes)?;
        at = at.advance(bytes.len() as u64);
        if at >= end {
            return Ok(());
        }
    }
}

impl FencedLog {
    /// End of the chosen history: where the new timeline begins.
    #[must_use]
    pub const fn end(&self) -> Lsn {
        self.chosen.record_end
    }

    /// The WAL in `from..end()`, as far back as the store keeps it; the LSN of its first byte.
    ///
    /// # Errors
    /// [`StoreError`]; `OtherTimeline` when somebody else has had the store go on with another history.
    pub fn read_tail(&mut self, from: Lsn) -> Result<(Lsn, Vec<u8>), StoreError> {
        let from = from.max(self.chosen.oldest);
        let end = self.end();
        let timeline = if self.begun {
            self.timeline
        } else {
            self.chosen.timeline
        };
        let mut bytes: Vec<u8> = Vec::new();
        let Some(source) = self.members.first_mut() else {
            return Ok((end, bytes));
        };
        loop {
            let at = from.advance(bytes.len() as u64);
            if at >= end {
                break;
            }
            let want = u32::try_from(end.since(at)).unwrap_or(CHUNK).min(CHUNK);
            let chunk = source.read_wal(at, want, timeline)?;
            if chunk.is_empty() {
                return Err(StoreError::Refused {
                    name: source.name().to_owned(),
                    message: format!("has no WAL at {at}"),
                    fenced_by: None,
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((from, bytes))
    }

    /// Begins the timeline, whose history file's text is `history`, with `wal`, the bytes from the end
    /// of the chosen history on. To be done twice: without any bytes, from when on what was caught up
    /// counts and storage nodes can reach the begin, and then with the first record. A store that does
    /// not answer is no member any more.
    ///
    /// # Errors
    /// [`FenceError::Begin`] unless a quorum did.
    pub fn begin(&mut self, history: &str, wal: &[u8]) -> Result<(), FenceError> {
        let request = LogRequest::BeginTimeline {
            timeline: self.timeline,
            parent: self.chosen.timeline,
            switch_at: self.chosen.record_end,
            history: history.to_owned(),
        };
        // All at once: each makes a segment and several small files durable, and that takes longer
        // than everything else in a start up to here.
        let request = &request;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let calls: Vec<_> = self
                .members
                .iter_mut()
                .map(|client| scope.spawn(move || client.status(request, wal)))
                .collect();
            calls.into_iter().map(|call| call.join()).collect()
        });
        let mut begun = Vec::new();
        let mut last = String::new();
        for (client, answer) in self.members.drain(..).zip(answers) {
            let error = match answer {
                Ok(Ok(_)) => {
                    begun.push(client);
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the call to {} panicked", client.name()),
            };
            tracing::warn!(store = client.name(), error, "could not begin the timeline");
            last = error;
        }
        self.members = begun;
        self.begun = true;
        if self.members.len() < self.quorum {
            return Err(FenceError::Begin {
                have: self.members.len(),
                needed: self.quorum,
                timeline: self.timeline,
                last,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str, history: &[(u32, u64)], record_end: u64) -> LogStatus {
        let history: Vec<api::log::TimelineStart> = history
            .iter()
            .map(|(timeline, begin)| api::log::TimelineStart {
                timeline: TimelineId(*timeline),
                begin: Lsn(*begin),
            })
            .collect();
        let timeline = history.last().unwrap().timeline;
        LogStatus {
            name: name.to_owned(),
            system_identifier: 7,
            promised: timeline,
            timeline,
            history,
            history_text: String::new(),
            oldest: Lsn(0),
            flushed: Lsn(record_end),
            record_end: Lsn(record_end),
            last_record: Lsn(record_end.saturating_sub(64)),
            quorum: Lsn(record_end),
            receiving: false,
            error: None,
        }
    }

    #[test]
    fn statuses_give_what_the_rules_choose_by() {
        let old = status("a", &[(1, 0)], 900);
        let new = status("b", &[(1, 0), (2, 500)], 600);
        let candidates = [candidate(&old), candidate(&new)];
        assert_eq!(choose_history(&candidates), Some(1));
        let (chosen, theirs) = (history_of(&new).unwrap(), history_of(&old).unwrap());
        let lacks = missing(&chosen, new.record_end, &theirs, old.record_end);
        assert_eq!((lacks.from, lacks.to), (Lsn(500), Lsn(600)));
    }

    #[test]
    fn a_damaged_history_is_refused() {
        let falling = status("a", &[(3, 0), (2, 500)], 900);
        let refused = history_of(&falling);
        assert!(matches!(refused, Err(FenceError::History { name, .. }) if name == "a"));
    }
}
