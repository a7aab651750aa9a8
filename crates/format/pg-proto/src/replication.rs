//! What travels inside `CopyData` while WAL streams.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_types::Lsn;

use crate::ProtoError;
use crate::wire::Fields;

/// Seconds from the Unix epoch to PostgreSQL's, 2000-01-01.
const POSTGRES_EPOCH_UNIX_SECONDS: u64 = 946_684_800;

/// `time` as PostgreSQL writes it: microseconds since 2000-01-01.
#[must_use]
pub fn pg_timestamp(time: SystemTime) -> i64 {
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_UNIX_SECONDS);
    let micros = time.duration_since(epoch).unwrap_or_default().as_micros();
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// From the sender of WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationMessage<'a> {
    /// `w`: WAL.
    XLogData {
        /// LSN of the first byte.
        start: Lsn,
        /// End of WAL at the sender.
        end: Lsn,
        /// When it was sent, in microseconds since 2000-01-01.
        time: i64,
        /// The bytes.
        data: &'a [u8],
    },
    /// `k`: nothing new.
    Keepalive {
        /// End of WAL at the sender.
        end: Lsn,
        /// When it was sent, in microseconds since 2000-01-01.
        time: i64,
        /// The receiver should report its status now.
        reply: bool,
    },
}

impl<'a> ReplicationMessage<'a> {
    /// The message in a `CopyData`'s `payload`.
    ///
    /// # Errors
    /// [`ProtoError`].
    pub fn decode(payload: &'a [u8]) -> Result<ReplicationMessage<'a>, ProtoError> {
        let mut fields = Fields::new(b'd', payload);
        match fields.u8("kind")? {
            b'w' => Ok(ReplicationMessage::XLogData {
                start: fields.lsn("start")?,
                end: fields.lsn("end")?,
                time: fields.i64("time")?,
                data: fields.rest(),
            }),
            b'k' => {
                let end = fields.lsn("end")?;
                let time = fields.i64("time")?;
                let reply = fields.u8("reply flag")? != 0;
                fields.end()?;
                Ok(ReplicationMessage::Keepalive { end, time, reply })
            }
            other => Err(fields.bad("kind", i64::from(other))),
        }
    }

    /// Appends the payload, without the `CopyData` around it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ReplicationMessage::XLogData {
                start,
                end,
                time,
                data,
            } => {
                out.push(b'w');
                out.extend_from_slice(&start.0.to_be_bytes());
                out.extend_from_slice(&end.0.to_be_bytes());
                out.extend_from_slice(&time.to_be_bytes());
                out.extend_from_slice(data);
            }
            ReplicationMessage::Keepalive { end, time, reply } => {
                out.push(b'k');
                out.extend_from_slice(&end.0.to_be_bytes());
                out.extend_from_slice(&time.to_be_bytes());
                out.push(u8::from(*reply));
            }
        }
    }
}

/// From the receiver of WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyMessage {
    /// `r`: how far the receiver has got. An invalid (zero) position means "none".
    Status {
        /// Written, not necessarily durable.
        write: Lsn,
        /// Durable; this is what the sender counts towards a commit.
        flush: Lsn,
        /// Applied.
        apply: Lsn,
        /// When it was sent, in microseconds since 2000-01-01.
        time: i64,
        /// The sender should answer with a keepalive now.
        reply: bool,
    },
    /// `h`: what a hot standby still needs.
    HotStandbyFeedback {
        /// When it was sent, in microseconds since 2000-01-01.
        time: i64,
        /// Oldest xid in use and its epoch.
        xmin: (u32, u32),
        /// Oldest catalog xid in use and its epoch.
        catalog_xmin: (u32, u32),
    },
}

impl StandbyMessage {
    /// The message in a `CopyData`'s `payload`.
    ///
    /// # Errors
    /// [`ProtoError`].
    pub fn decode(payload: &[u8]) -> Result<StandbyMessage, ProtoError> {
        let mut fields = Fields::new(b'd', payload);
        let decoded = match fields.u8("kind")? {
            b'r' => StandbyMessage::Status {
                write: fields.lsn("write position")?,
                flush: fields.lsn("flush position")?,
                apply: fields.lsn("apply position")?,
                time: fields.i64("time")?,
                reply: fields.u8("reply flag")? != 0,
            },
            b'h' => StandbyMessage::HotStandbyFeedback {
                time: fields.i64("time")?,
                xmin: (fields.u32("xmin")?, fields.u32("xmin epoch")?),
                catalog_xmin: (
                    fields.u32("catalog xmin")?,
                    fields.u32("catalog xmin epoch")?,
                ),
            },
            other => return Err(fields.bad("kind", i64::from(other))),
        };
        fields.end()?;
        Ok(decoded)
    }

    /// Appends the payload, without the `CopyData` around it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            StandbyMessage::Status {
                write,
                flush,
                apply,
                time,
                reply,
            } => {
                out.push(b'r');
                for lsn in [write, flush, apply] {
                    out.extend_from_slice(&lsn.0.to_be_bytes());
                }
                out.extend_from_slice(&time.to_be_bytes());
                out.push(u8::from(*reply));
            }
            StandbyMessage::HotStandbyFeedback {
                time,
                xmin,
                catalog_xmin,
            } => {
                out.push(b'h');
                out.extend_from_slice(&time.to_be_bytes());
                for word in [xmin.0, xmin.1, catalog_xmin.0, catalog_xmin.1] {
                    out.extend_from_slice(&word.to_be_bytes());
                }
            }
        }
    }
}
