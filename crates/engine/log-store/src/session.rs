//! One replication client: start-up and commands, as a walsender answers them.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use pg_proto::{
    BackendMessage, ErrorFields, FieldDescription, FrontendMessage, Inbox, ProtoError,
    ReplicationCommand, Severity, SlotKind, StartupPacket, TransactionStatus,
};
use pg_types::{Lsn, TimelineId};

use crate::error::StoreError;
use crate::serve::ClientSocket;
use crate::store::Shared;

/// Clients send only commands and status messages.
const MESSAGE_LIMIT: u32 = 1 << 20;

/// Longest wait for a client to accept what it is sent.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Proto(#[from] ProtoError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) socket: ClientSocket,
    pub(crate) inbox: Inbox,
    pub(crate) out: Vec<u8>,
    pub(crate) application_name: String,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, socket: ClientSocket) -> Session {
        let inbox = Inbox::new(MESSAGE_LIMIT);
        Session {
            shared,
            socket,
            inbox,
            out: Vec::new(),
            application_name: String::new(),
        }
    }

    /// Serves the client until it leaves.
    pub(crate) fn run(mut self) -> Result<(), SessionError> {
        self.socket.set_timeouts(None, Some(WRITE_TIMEOUT))?;
        if !self.start_up()? {
            return Ok(());
        }
        loop {
            self.send(&BackendMessage::ReadyForQuery(TransactionStatus::Idle));
            self.flush()?;
            let Some(text) = self.next_query()? else {
                return Ok(());
            };
            self.execute(&text)?;
        }
    }

    pub(crate) fn send(&mut self, message: &BackendMessage<'_>) {
        message.encode(&mut self.out);
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Receives more; false at the connection's end.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            match self.socket.read(self.inbox.space(8192)) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    self.inbox.received(len);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the start-up packets; false when the client has nothing more to ask.
    fn start_up(&mut self) -> Result<bool, SessionError> {
        loop {
            let packet = match self.inbox.next_startup()? {
                None => {
                    if !self.receive()? {
                        return Ok(false);
                    }
                    continue;
                }
                Some(body) => StartupPacket::decode(body),
            };
            match packet {
                Ok(StartupPacket::SslRequest | StartupPacket::GssEncRequest) => {
                    self.socket.write_all(b"N")?;
                }
                Ok(StartupPacket::CancelRequest { .. }) => return Ok(false),
                Ok(StartupPacket::Startup { minor, parameters }) => {
                    return self.welcome(minor, &parameters);
                }
                Err(error) => {
                    self.refuse("08P01", Severity::Fatal, error.to_string(), None);
                    self.flush()?;
                    return Ok(false);
                }
            }
        }
    }

    fn welcome(
        &mut self,
        minor: u16,
        parameters: &[(String, String)],
    ) -> Result<bool, SessionError> {
        let value = |wanted: &str| {
            parameters
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.as_str())
        };
        let replication = value("replication")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if !["true", "on", "yes", "1"].contains(&replication.as_str()) {
            let hint = "connect to the primary for SQL, or with replication=true for WAL";
            let message = "this is a log store: it serves physical replication only";
            self.refuse("0A000", Severity::Fatal, message, Some(hint));
            self.flush()?;
            return Ok(false);
        }
        self.application_name = value("application_name").unwrap_or_default().to_owned();
        if minor > 0 {
            self.send(&BackendMessage::NegotiateProtocolVersion { minor: 0 });
        }
        self.send(&BackendMessage::AuthenticationOk);
        let version = format!("{}.0 (Strandline log store)", self.shared.major);
        for (name, value) in [
            ("server_version", version.as_str()),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
        ] {
            self.send(&BackendMessage::ParameterStatus { name, value });
        }
        let process = std::process::id();
        self.send(&BackendMessage::BackendKeyData {
            process,
            secret: &[0; 4],
        });
        Ok(true)
    }

    /// The next command; `None` when the client left.
    fn next_query(&mut self) -> Result<Option<String>, SessionError> {
        loop {
            let decoded = match self.inbox.next_message()? {
                None => {
                    if !self.receive()? {
                        return Ok(None);
                    }
                    continue;
                }
                Some(raw) => FrontendMessage::decode(raw)?,
            };
            match decoded {
                FrontendMessage::Query(text) => return Ok(Some(text.to_owned())),
                FrontendMessage::Terminate => return Ok(None),
                // Left over from a stream that has ended.
                FrontendMessage::CopyData(_)
                | FrontendMessage::CopyDone
                | FrontendMessage::CopyFail(_)
                | FrontendMessage::Password(_) => {}
                FrontendMessage::Unsupported { tag } => {
                    let message = format!("message type {:?} is not served here", tag as char);
                    self.refuse("0A000", Severity::Error, message, None);
                    self.flush()?;
                }
            }
        }
    }

    pub(crate) fn refuse(
        &mut self,
        code: &str,
        severity: Severity,
        message: impl Into<String>,
        hint: Option<&str>,
    ) {
        let mut error = ErrorFields::new(severity, code, message);
        error.hint = hint.map(str::to_owned);
        self.send(&BackendMessage::ErrorResponse(error));
    }

    pub(crate) fn rows(
        &mut self,
        columns: Vec<FieldDescription>,
        row: &[Option<String>],
        tag: &str,
    ) {
        self.send(&BackendMessage::RowDescription(columns));
        if !row.is_empty() {
            let values = row
                .iter()
                .map(|value| value.as_deref().map(str::as_bytes))
                .collect();
            self.send(&BackendMessage::DataRow(values));
        }
        self.send(&BackendMessage::CommandComplete(tag));
    }

    fn execute(&mut self, text: &str) -> Result<(), SessionError> {
        let command = match ReplicationCommand::parse(text) {
            Ok(command) => command,
            Err(error) => {
                self.refuse("42601", Severity::Error, error.to_string(), None);
                return Ok(());
            }
        };
        match command {
            ReplicationCommand::IdentifySystem => self.identify_system(),
            ReplicationCommand::TimelineHistory(timeline) => self.timeline_history(timeline)?,
            ReplicationCommand::StartReplication {
                start,
                timeline,
                slot,
            } => {
                self.start_replication(start, timeline, slot)?;
            }
            ReplicationCommand::CreateReplicationSlot { slot, kind, .. } => {
                self.create_slot(&slot, &kind);
            }
            ReplicationCommand::ReadReplicationSlot { .. } => self.read_slot(),
            ReplicationCommand::DropReplicationSlot { .. } => {
                self.send(&BackendMessage::CommandComplete("DROP_REPLICATION_SLOT"));
            }
            ReplicationCommand::Show { name } => self.show(&name),
            ReplicationCommand::StartLogicalReplication { .. } => {
                let message =
                    "a log store does not decode WAL: logical replication is served by the primary";
                self.refuse("0A000", Severity::Error, message, None);
            }
            ReplicationCommand::Unsupported { word } => {
                let message = format!("a log store has WAL only: {word} is not served");
                self.refuse("0A000", Severity::Error, message, None);
            }
            ReplicationCommand::Sql(sql) => self.sql(&sql),
        }
        Ok(())
    }

    fn identify_system(&mut self) {
        let (timeline, quorum) = {
            let published = self.shared.published();
            (published.history.timeline(), published.quorum)
        };
        let columns = vec![
            FieldDescription::text("systemid"),
            FieldDescription::int8("timeline"),
            FieldDescription::text("xlogpos"),
            FieldDescription::text("dbname"),
        ];
        let system = self.shared.system_identifier.to_string();
        let row = [
            Some(system),
            Some(timeline.to_string()),
            Some(quorum.to_string()),
            None,
        ];
        self.rows(columns, &row, "IDENTIFY_SYSTEM");
    }

    fn timeline_history(&mut self, timeline: TimelineId) -> Result<(), SessionError> {
        let known = self.shared.published().history.contains(timeline);
        let text = if known {
            self.shared.dir.history_text(timeline)?
        } else {
            None
        };
        let name = timeline.history_file_name();
        match text {
            Some(text) => {
                let columns = vec![
                    FieldDescription::text("filename"),
                    FieldDescription::text("content"),
                ];
                self.rows(columns, &[Some(name), Some(text)], "TIMELINE_HISTORY");
            }
            None => {
                let message = format!("could not open file \"pg_wal/{name}\": no such timeline");
                self.refuse("58P01", Severity::Error, message, None);
            }
        }
        Ok(())
    }

    /// Slots are names only: what is kept depends on the storage node, not on them.
    fn create_slot(&mut self, slot: &str, kind: &SlotKind) {
        if let SlotKind::Logical { .. } = kind {
            let message = "a log store has no logical slots";
            self.refuse("0A000", Severity::Error, message, None);
            return;
        }
        let columns = vec![
            FieldDescription::text("slot_name"),
            FieldDescription::text("consistent_point"),
            FieldDescription::text("snapshot_name"),
            FieldDescription::text("output_plugin"),
        ];
        let row = [
            Some(slot.to_owned()),
            Some(Lsn::INVALID.to_string()),
            None,
            None,
        ];
        self.rows(columns, &row, "CREATE_REPLICATION_SLOT");
    }

    /// As for a slot that keeps everything this store has: a client without WAL of its own starts
    /// with the oldest.
    fn read_slot(&mut self) {
        let (oldest, timeline) = {
            let published = self.shared.published();
            (
                published.oldest,
                published.history.timeline_at(published.oldest),
            )
        };
        let columns = vec![
            FieldDescription::text("slot_type"),
            FieldDescription::text("restart_lsn"),
            FieldDescription::int8("restart_tli"),
        ];
        let row = [
            Some("physical".to_owned()),
            Some(oldest.to_string()),
            Some(timeline.to_string()),
        ];
        self.rows(columns, &row, "READ_REPLICATION_SLOT");
    }

    fn show(&mut self, name: &str) {
        let size = self.shared.dir.size.bytes() >> 20;
        let value = match name {
            "wal_segment_size" if size == 1024 => "1GB".to_owned(),
            "wal_segment_size" => format!("{size}MB"),
            "data_directory_mode" => "0700".to_owned(),
            "server_version" => format!("{}.0", self.shared.major),
            "server_version_num" => format!("{}0000", self.shared.major),
            "integer_datetimes" => "on".to_owned(),
            "hot_standby" | "data_checksums" => "off".to_owned(),
            "max_wal_senders" => "64".to_owned(),
            "wal_level" => "replica".to_owned(),
            _ => {
                let message = format!("unrecognized configuration parameter \"{name}\"");
                self.refuse("42704", Severity::Error, message, None);
                return;
            }
        };
        self.rows(vec![FieldDescription::text(name)], &[Some(value)], "SHOW");
    }

    /// The few statements that stock clients send on replication connections.
    fn sql(&mut self, sql: &str) {
        let folded = sql.trim().trim_end_matches(';').to_ascii_lowercase();
        if folded.is_empty() {
            self.send(&BackendMessage::EmptyQueryResponse);
        } else if folded.starts_with("select pg_catalog.set_config(") {
            let columns = vec![FieldDescription::text("set_config")];
            self.rows(columns, &[Some(String::new())], "SELECT 1");
        } else if folded.starts_with("set ") {
            self.send(&BackendMessage::CommandComplete("SET"));
        } else {
            let message = "a log store runs no SQL";
            self.refuse(
                "0A000",
                Severity::Error,
                message,
                Some("connect to the primary"),
            );
        }
    }
}
