//! Connecting and asking.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use pg_proto::{
    BackendMessage, DEFAULT_MESSAGE_LIMIT, FrontendMessage, Inbox, StartupPacket, quote_identifier,
};
use pg_types::{Lsn, TimelineId};

use crate::error::PgClientError;
use crate::replication::ReplicationStream;
use crate::socket::{ServerAddress, Socket};

/// Longest wait for a connection unless the caller says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes asked for in one read; a walsender's largest message is 128 KiB.
const READ_BYTES: usize = 256 << 10;

/// What one statement returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryResult {
    /// Names of the columns; empty for a statement without rows.
    pub columns: Vec<String>,
    /// The rows, values in text form.
    pub rows: Vec<Vec<Option<String>>>,
    /// The command tag, such as `INSERT 0 1`.
    pub tag: String,
}

impl QueryResult {
    /// The value in the first row's column `index`, unless it is missing or NULL.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<&str> {
        self.rows.first()?.get(index)?.as_deref()
    }
}

/// Answer to `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// The server's current timeline.
    pub timeline: TimelineId,
    /// End of the WAL that it has made durable.
    pub flushed: Lsn,
}

/// Answer to `TIMELINE_HISTORY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineHistory {
    /// Name of the file, such as `00000002.history`.
    pub file_name: String,
    /// Its text.
    pub text: String,
}

/// A connection to a server.
#[derive(Debug)]
pub struct PgClient {
    pub(crate) address: ServerAddress,
    pub(crate) socket: Socket,
    pub(crate) inbox: Inbox,
    parameters: BTreeMap<String, String>,
    timeout: Option<Duration>,
}

/// A message that no longer borrows the inbox.
pub(crate) enum Reply {
    Columns(Vec<String>),
    Row(Vec<Option<String>>),
    Complete(String),
    CopyBoth,
    CopyDone,
    Ready,
    Error(Box<pg_proto::ErrorFields>),
    Parameter(String, String),
    Other(String),
}

impl PgClient {
    /// Connects as `user`. `host` is a host name or the directory of the server's Unix socket;
    /// `params` are further start-up parameters such as `application_name`. With `replication` the
    /// connection takes replication commands instead of SQL and `database` is not used.
    ///
    /// # Errors
    /// [`PgClientError`]; `Server` when the server refuses (role, database, too many connections,
    /// still starting up: SQLSTATE 57P03).
    pub fn connect(
        host: &str,
        port: u16,
        user: &str,
        database: &str,
        params: &[(&str, &str)],
        replication: bool,
    ) -> Result<PgClient, PgClientError> {
        let address = ServerAddress {
            host: host.to_owned(),
            port,
        };
        let socket = Socket::connect(&address, CONNECT_TIMEOUT).map_err(|source| {
            PgClientError::Connect {
                address: address.clone(),
                source,
            }
        })?;
        let mut client = PgClient {
            address,
            socket,
            inbox: Inbox::new(DEFAULT_MESSAGE_LIMIT),
            parameters: BTreeMap::new(),
            timeout: Some(CONNECT_TIMEOUT),
        };
        let mut parameters = vec![("user".to_owned(), user.to_owned())];
        if replication {
            parameters.push(("replication".to_owned(), "true".to_owned()));
        } else {
            parameters.push(("database".to_owned(), database.to_owned()));
        }
        parameters.extend(
            params
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        let mut out = Vec::new();
        StartupPacket::Startup {
            minor: 0,
            parameters,
        }
        .encode(&mut out);
        client.send(&out)?;
        client.authenticate()?;
        client.timeout = None;
        Ok(client)
    }

    /// Bounds the wait for each later answer; `None` (the default) waits forever.
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The server.
    #[must_use]
    pub const fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// A setting that the server reported, such as `server_version`.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// Runs `sql` by the simple protocol and returns the result of its last statement.
    ///
    /// # Errors
    /// [`PgClientError`]; `Server` when the server reports an error, after which the connection can
    /// go on.
    pub fn simple_query(&mut self, sql: &str) -> Result<QueryResult, PgClientError> {
        Ok(self.query_all(sql)?.pop().unwrap_or_default())
    }

    /// Runs `sql` by the simple protocol and returns one result for each statement in it.
    ///
    /// # Errors
    /// As [`PgClient::simple_query`].
    pub fn query_all(&mut self, sql: &str) -> Result<Vec<QueryResult>, PgClientError> {
        self.send_query(sql)?;
        self.collect_results("in a query's answer")
    }

    /// Asks a server on a replication connection who it is.
    ///
    /// # Errors
    /// [`PgClientError`].
    pub fn identify_system(&mut self) -> Result<SystemIdentity, PgClientError> {
        let result = self.simple_query("IDENTIFY_SYSTEM")?;
        let parsed = (|| {
            Some(SystemIdentity {
                system_identifier: result.value(0)?.parse().ok()?,
                timeline: TimelineId(result.value(1)?.parse().ok()?),
                flushed: result.value(2)?.parse().ok()?,
            })
        })();
        parsed.ok_or_else(|| self.unexpected("as its identity", format!("{:?}", result.rows)))
    }

    /// The history file of `timeline`.
    ///
    /// # Errors
    /// [`PgClientError`]; `Server` when the server has no such timeline.
    pub fn timeline_history(
        &mut self,
        timeline: TimelineId,
    ) -> Result<TimelineHistory, PgClientError> {
        let result = self.simple_query(&format!("TIMELINE_HISTORY {timeline}"))?;
        let parsed = (|| {
            let file_name = result.value(0)?.to_owned();
            Some(TimelineHistory {
                file_name,
                text: result.value(1)?.to_owned(),
            })
        })();
        parsed.ok_or_else(|| self.unexpected("as a history file", format!("{:?}", result.rows)))
    }

    /// Creates a physical slot that keeps WAL from now on; true when it did not exist before.
    ///
    /// # Errors
    /// [`PgClientError`].
    pub fn create_physical_slot(&mut self, name: &str) -> Result<bool, PgClientError> {
        let name = quote_identifier(name);
        match self.simple_query(&format!(
            "CREATE_REPLICATION_SLOT {name} PHYSICAL RESERVE_WAL"
        )) {
            Ok(_) => Ok(true),
            Err(error) if error.sqlstate() == Some("42710") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts streaming WAL from `start` on `timeline`. When `timeline` ended at `start` already,
    /// the stream's first event says so.
    ///
    /// # Errors
    /// [`PgClientError`]; `Server` when the server does not have that WAL (58P01) or that timeline,
    /// or the slot is in use (55006).
    pub fn start_replication(
        mut self,
        slot: Option<&str>,
        start: Lsn,
        timeline: TimelineId,
    ) -> Result<ReplicationStream, PgClientError> {
        let slot = slot
            .map(|name| format!("SLOT {} ", quote_identifier(name)))
            .unwrap_or_default();
        self.send_query(&format!(
            "START_REPLICATION {slot}PHYSICAL {start} TIMELINE {timeline}"
        ))?;
        ReplicationStream::begin(self)
    }

    pub(crate) fn send_query(&mut self, text: &str) -> Result<(), PgClientError> {
        let mut out = Vec::new();
        FrontendMessage::Query(text).encode(&mut out);
        self.send(&out)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), PgClientError> {
        self.socket
            .set_write_timeout(self.timeout)
            .and_then(|()| self.socket.write_all(bytes))
            .map_err(|source| self.broken(source, self.timeout))
    }

    /// Reads results up to `ReadyForQuery`; an error among them is returned after it.
    pub(crate) fn collect_results(
        &mut self,
        during: &'static str,
    ) -> Result<Vec<QueryResult>, PgClientError> {
        let mut results = Vec::new();
        let mut current = QueryResult::default();
        let mut failure = None;
        loop {
            match self.reply(during)? {
                Reply::Columns(columns) => current.columns = columns,
                Reply::Row(row) => current.rows.push(row),
                Reply::Complete(tag) => {
                    current.tag = tag;
                    results.push(std::mem::take(&mut current));
                }
                Reply::Error(error) => {
                    let fatal = error.severity != pg_proto::Severity::Error;
                    let error = PgClientError::Server {
                        address: self.address.clone(),
                        error,
                    };
                    if fatal {
                        return Err(error);
                    }
                    failure = Some(error);
                }
                Reply::Parameter(name, value) => {
                    self.parameters.insert(name, value);
                }
                Reply::Ready => return failure.map_or(Ok(results), Err),
                Reply::CopyDone => {}
                Reply::CopyBoth => {
                    return Err(self.unexpected(during, "CopyBothResponse".to_owned()));
                }
                Reply::Other(message) => return Err(self.unexpected(during, message)),
            }
        }
    }

    fn authenticate(&mut self) -> Result<(), PgClientError> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.wait_for_message(deadline)?;
            let address = self.address.clone();
            match self.decode()? {
                BackendMessage::AuthenticationOk
                | BackendMessage::BackendKeyData { .. }
                | BackendMessage::NoticeResponse(_)
                | BackendMessage::NegotiateProtocolVersion { .. } => {}
                BackendMessage::AuthenticationRequest { method } => {
                    return Err(PgClientError::Authentication { address, method });
                }
                BackendMessage::ParameterStatus { name, value } => {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    self.parameters.insert(name, value);
                }
                BackendMessage::ReadyForQuery(_) => return Ok(()),
                BackendMessage::ErrorResponse(error) => {
                    return Err(PgClientError::Server {
                        address,
                        error: Box::new(error),
                    });
                }
                other => {
                    let message = shorten(&other);
                    return Err(self.unexpected("during start-up", message));
                }
            }
        }
    }

    /// The next message that matters, owned.
    pub(crate) fn reply(&mut self, during: &'static str) -> Result<Reply, PgClientError> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.wait_for_message(deadline)?;
            let reply = match self.decode()? {
                BackendMessage::RowDescription(columns) => {
                    Reply::Columns(columns.into_iter().map(|column| column.name).collect())
                }
                BackendMessage::DataRow(values) => {
                    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                    Reply::Row(values.into_iter().map(|value| value.map(text)).collect())
                }
                BackendMessage::CommandComplete(tag) => Reply::Complete(tag.to_owned()),
                BackendMessage::EmptyQueryResponse => Reply::Complete(String::new()),
                BackendMessage::CopyBothResponse => Reply::CopyBoth,
                BackendMessage::CopyDone => Reply::CopyDone,
                // What the sender still had on its way when we ended the stream.
                BackendMessage::CopyData(_) if during == crate::replication::ENDING => continue,
                BackendMessage::ReadyForQuery(_) => Reply::Ready,
                BackendMessage::ErrorResponse(error) => Reply::Error(Box::new(error)),
                BackendMessage::ParameterStatus { name, value } => {
                    Reply::Parameter(name.to_owned(), value.to_owned())
                }
                BackendMessage::NoticeResponse(_) | BackendMessage::Notification => continue,
                other => Reply::Other(shorten(&other)),
            };
            return Ok(reply);
        }
    }

    /// Decodes the message that is known to be whole in the inbox.
    pub(crate) fn decode(&mut self) -> Result<BackendMessage<'_>, PgClientError> {
        let address = &self.address;
        let protocol = |source| PgClientError::Protocol {
            address: address.clone(),
            source,
        };
        let raw = self.inbox.next_message().map_err(protocol)?;
        let raw = raw.ok_or_else(|| PgClientError::Closed {
            address: address.clone(),
        })?;
        BackendMessage::decode(raw).map_err(protocol)
    }

    /// Receives until a whole message is there.
    pub(crate) fn wait_for_message(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<(), PgClientError> {
        loop {
            let whole = self.inbox.has_message();
            if whole.map_err(|source| self.protocol(source))? {
                return Ok(());
            }
            let remaining = deadline.map(|deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .max(Duration::from_millis(1))
            });
            let broken = |source| PgClientError::Io {
                address: self.address.clone(),
                source,
            };
            self.socket.set_read_timeout(remaining).map_err(broken)?;
            match self.socket.read(self.inbox.space(READ_BYTES)) {
                Ok(0) => {
                    return Err(PgClientError::Closed {
                        address: self.address.clone(),
                    });
                }
                Ok(len) => self.inbox.received(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let early = deadline.is_some_and(|deadline| Instant::now() < deadline);
                    if is_timeout(&error) && early {
                        continue;
                    }
                    return Err(self.broken(error, self.timeout));
                }
            }
        }
    }

    fn protocol(&self, source: pg_proto::ProtoError) -> PgClientError {
        PgClientError::Protocol {
            address: self.address.clone(),
            source,
        }
    }

    fn broken(&self, source: io::Error, timeout: Option<Duration>) -> PgClientError {
        let address = self.address.clone();
        match source.kind() {
            _ if is_timeout(&source) => PgClientError::TimedOut {
                address,
                timeout_ms: timeout.unwrap_or_default().as_millis(),
            },
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                PgClientError::Closed { address }
            }
            _ => PgClientError::Io { address, source },
        }
    }

    pub(crate) fn unexpected(&self, during: &'static str, message: String) -> PgClientError {
        PgClientError::Unexpected {
            address: self.address.clone(),
            during,
            message,
        }
    }
}

/// A message for a person, without its bulk.
pub(crate) fn shorten(message: &BackendMessage<'_>) -> String {
    let mut text = format!("{message:?}");
    if let Some((cut, _)) = text.char_indices().nth(120) {
        text.truncate(cut);
    }
    text
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
