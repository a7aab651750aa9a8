//! Applying WAL: bytes in, page versions and state out.
//!
//! **Invariant.** The store advances only to ends of records all of whose changes it has. A record that
//! cannot be ingested ends ingestion: what came before it is applied, nothing of it or behind it is.
//! Going on behind it would serve pages that lack its changes.

use std::sync::Arc;

use cluster_state::{ChangeSink, ClusterIngest, EncodedChange, ResumeError, StateChange};
use page_store::{IngestBatch, PageStore};
use pg_types::{Lsn, PageKey, TimelineId};
use pg_wal::{StreamError, WalStream};

use crate::block_history::SharedHistory;
use crate::status::NodeStatus;

/// Why a portion of WAL was not applied to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The bytes are not the WAL that follows; another log store may have it.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A record cannot be ingested; no other source would help.
    #[error(transparent)]
    Record(#[from] cluster_state::IngestError),
    /// The store takes no more.
    #[error(transparent)]
    Store(#[from] page_store::IngestError),
}

/// Splits WAL into records and gives the store what they change.
pub(crate) struct Ingestor {
    store: Arc<PageStore>,
    history: Arc<SharedHistory>,
    status: Arc<NodeStatus>,
    wal: WalStream,
    state: ClusterIngest,
    batch: IngestBatch,
    encoded: EncodedChange,
    /// State changes of the portion in hand.
    changes: Vec<(Lsn, StateChange)>,
    /// Why ingestion has ended, if it has.
    refused: Option<cluster_state::IngestError>,
    /// The timeline that is being streamed.
    timeline: TimelineId,
}

/// Puts changes into a batch, and keeps state changes for the history.
struct BatchSink<'a> {
    batch: &'a mut IngestBatch,
    encoded: &'a mut EncodedChange,
    changes: &'a mut Vec<(Lsn, StateChange)>,
}

impl ChangeSink for BatchSink<'_> {
    fn page(&mut self, key: PageKey, lsn: Lsn, mini: &[u8]) {
        self.batch.mini(key, lsn, mini);
    }

    fn state(&mut self, lsn: Lsn, change: StateChange) {
        change.encode(self.encoded);
        self.batch
            .meta(self.encoded.key(), lsn, self.encoded.value());
        self.changes.push((lsn, change));
    }
}

impl Ingestor {
    /// Goes on where the store's layer files end.
    ///
    /// # Errors
    /// [`ResumeError`] when the stored state is incomplete.
    pub(crate) fn resume(
        store: Arc<PageStore>,
        history: Arc<SharedHistory>,
        status: Arc<NodeStatus>,
    ) -> Result<Ingestor, ResumeError> {
        let from = store.disk_consistent();
        let identity = *store.identity();
        let state = ClusterIngest::resume(&history.read(), from.lsn)?;
        Ok(Ingestor {
            wal: WalStream::new(from.lsn, identity.major, identity.segment_size),
            store,
            history,
            status,
            state,
            batch: IngestBatch::new(),
            encoded: EncodedChange::default(),
            changes: Vec::new(),
            refused: None,
            timeline: from.timeline,
        })
    }

    /// Where to stream from, and on which timeline.
    pub(crate) fn position(&self) -> (Lsn, TimelineId) {
        (self.wal.record_end(), self.timeline)
    }

    /// End of what was pushed, whole records or not.
    pub(crate) fn received(&self) -> Lsn {
        self.wal.fed()
    }

    /// Forgets a record that has not come completely: the next connection starts at its begin.
    ///
    /// # Errors
    /// [`StreamError`] never, since it goes back to the end of the last record.
    pub(crate) fn restart(&mut self) -> Result<(), StreamError> {
        self.wal
            .switch_timeline(self.wal.record_end(), self.timeline)
    }

    /// The history goes on with `next` from `at`.
    ///
    /// # Errors
    /// [`StreamError`] unless `at` is where the last record ended.
    pub(crate) fn switch_timeline(&mut self, at: Lsn, next: TimelineId) -> Result<(), StreamError> {
        self.wal.switch_timeline(at, next)?;
        self.timeline = next;
        Ok(())
    }

    /// Takes WAL bytes that stand at `at` and applies every record that is whole now.
    ///
    /// # Errors
    /// [`ApplyError`]; the records before what it names are applied. After [`ApplyError::Record`]
    /// nothing is taken any more.
    pub(crate) fn apply(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), ApplyError> {
        if let Some(error) = &self.refused {
            return Err(error.clone().into());
        }
        self.wal.push(at, bytes)?;
        let mut records = 0;
        let mut good = None;
        let ended = loop {
            let record = match self.wal.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => break Ok(()),
                // The damage may be one log store's only.
                Err(error) => break Err(error.into()),
            };
            let mut sink = BatchSink {
                batch: &mut self.batch,
                encoded: &mut self.encoded,
                changes: &mut self.changes,
            };
            if let Err(error) = self.state.ingest(&record, &mut sink) {
                self.refused = Some(error.clone());
                let upto = good.map_or(Lsn::INVALID, |(end, _)| end);
                self.batch.discard_above(upto);
                self.changes.retain(|(lsn, _)| *lsn <= upto);
                break Err(error.into());
            }
            good = Some((record.end, record.start));
            records += 1;
        };
        if let Some((end, last_record)) = good {
            self.store.ingest(&mut self.batch)?;
            self.history.extend(self.changes.drain(..));
            self.store.advance(end, last_record, self.timeline)?;
        }
        self.status.count_wal(records, bytes.len() as u64);
        ended
    }
}
