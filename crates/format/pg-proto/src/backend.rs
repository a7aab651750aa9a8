//! What a server says.

use crate::error_fields::ErrorFields;
use crate::wire::{Fields, message, put_text};
use crate::{ProtoError, RawMessage};

/// The server's transaction state in `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// `I`: no transaction.
    Idle,
    /// `T`: in a transaction.
    InTransaction,
    /// `E`: in a failed transaction.
    Failed,
}

/// One column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDescription {
    /// Its name.
    pub name: String,
    /// OID of its type.
    pub type_oid: u32,
    /// Size of its type in bytes, negative for variable.
    pub type_len: i16,
}

impl FieldDescription {
    /// A column of type `text`.
    #[must_use]
    pub fn text(name: &str) -> FieldDescription {
        FieldDescription {
            name: name.to_owned(),
            type_oid: 25,
            type_len: -1,
        }
    }

    /// A column of type `int4`.
    #[must_use]
    pub fn int4(name: &str) -> FieldDescription {
        FieldDescription {
            name: name.to_owned(),
            type_oid: 23,
            type_len: 4,
        }
    }

    /// A column of type `int8`.
    #[must_use]
    pub fn int8(name: &str) -> FieldDescription {
        FieldDescription {
            name: name.to_owned(),
            type_oid: 20,
            type_len: 8,
        }
    }
}

/// A message of a server, as far as simple queries and replication need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendMessage<'a> {
    /// `R` 0: authenticated.
    AuthenticationOk,
    /// `R` other: the server wants proof.
    AuthenticationRequest {
        /// The method, such as 10 for SASL.
        method: i32,
    },
    /// `S`: a setting the server reports.
    ParameterStatus {
        /// Its name.
        name: &'a str,
        /// Its value.
        value: &'a str,
    },
    /// `K`: how to cancel what this connection runs.
    BackendKeyData {
        /// Process id.
        process: u32,
        /// Secret; four bytes in protocol 3.0, longer in 3.2.
        secret: &'a [u8],
    },
    /// `Z`: ready for the next query.
    ReadyForQuery(TransactionStatus),
    /// `E`: an error.
    ErrorResponse(ErrorFields),
    /// `N`: a warning or notice.
    NoticeResponse(ErrorFields),
    /// `T`: the columns of the rows that follow.
    RowDescription(Vec<FieldDescription>),
    /// `D`: one row, `None` for NULL.
    DataRow(Vec<Option<&'a [u8]>>),
    /// `C`: the command is done.
    CommandComplete(&'a str),
    /// `I`: the query was empty.
    EmptyQueryResponse,
    /// `W`: both sides now send copy data.
    CopyBothResponse,
    /// `H`: the server now sends copy data.
    CopyOutResponse,
    /// `G`: the server now expects copy data.
    CopyInResponse,
    /// `d`: a piece of the copy stream.
    CopyData(&'a [u8]),
    /// `c`: the server's end of the copy stream.
    CopyDone,
    /// `A`: an asynchronous notification, not looked into.
    Notification,
    /// `v`: the server knows only an older minor version, or not every option.
    NegotiateProtocolVersion {
        /// Newest minor version the server knows.
        minor: u32,
    },
}

impl<'a> BackendMessage<'a> {
    /// The message in `raw`.
    ///
    /// # Errors
    /// [`ProtoError`].
    pub fn decode(raw: RawMessage<'a>) -> Result<BackendMessage<'a>, ProtoError> {
        let mut fields = Fields::new(raw.tag, raw.body);
        let decoded = match raw.tag {
            b'R' => match fields.i32("method")? {
                0 => BackendMessage::AuthenticationOk,
                method => {
                    fields.rest();
                    BackendMessage::AuthenticationRequest { method }
                }
            },
            b'S' => BackendMessage::ParameterStatus {
                name: fields.text("name")?,
                value: fields.text("value")?,
            },
            b'K' => BackendMessage::BackendKeyData {
                process: fields.u32("process id")?,
                secret: fields.rest(),
            },
            b'Z' => BackendMessage::ReadyForQuery(match fields.u8("status")? {
                b'I' => TransactionStatus::Idle,
                b'T' => TransactionStatus::InTransaction,
                b'E' => TransactionStatus::Failed,
                other => return Err(fields.bad("status", i64::from(other))),
            }),
            b'E' => BackendMessage::ErrorResponse(ErrorFields::decode(&mut fields)?),
            b'N' => BackendMessage::NoticeResponse(ErrorFields::decode(&mut fields)?),
            b'T' => BackendMessage::RowDescription(decode_columns(&mut fields)?),
            b'D' => BackendMessage::DataRow(decode_row(&mut fields)?),
            b'C' => BackendMessage::CommandComplete(fields.text("tag")?),
            b'I' => BackendMessage::EmptyQueryResponse,
            b'W' => decode_copy(&mut fields, BackendMessage::CopyBothResponse)?,
            b'H' => decode_copy(&mut fields, BackendMessage::CopyOutResponse)?,
            b'G' => decode_copy(&mut fields, BackendMessage::CopyInResponse)?,
            b'd' => BackendMessage::CopyData(fields.rest()),
            b'c' => BackendMessage::CopyDone,
            b'A' => {
                fields.rest();
                BackendMessage::Notification
            }
            b'v' => {
                let minor = fields.u32("minor version")?;
                fields.rest();
                BackendMessage::NegotiateProtocolVersion { minor }
            }
            tag => return Err(ProtoError::UnknownMessage { tag: tag as char }),
        };
        fields.end()?;
        Ok(decoded)
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            BackendMessage::AuthenticationOk => put_word(out, b'R', 0),
            BackendMessage::AuthenticationRequest { method } => put_word(out, b'R', *method),
            BackendMessage::ParameterStatus { name, value } => message(out, b'S', |out| {
                put_text(out, name);
                put_text(out, value);
            }),
            BackendMessage::BackendKeyData { process, secret } => message(out, b'K', |out| {
                out.extend_from_slice(&process.to_be_bytes());
                out.extend_from_slice(secret);
            }),
            BackendMessage::ReadyForQuery(status) => message(out, b'Z', |out| {
                out.push(match status {
                    TransactionStatus::Idle => b'I',
                    TransactionStatus::InTransaction => b'T',
                    TransactionStatus::Failed => b'E',
                });
            }),
            BackendMessage::ErrorResponse(error) => message(out, b'E', |out| error.encode(out)),
            BackendMessage::NoticeResponse(error) => message(out, b'N', |out| error.encode(out)),
            BackendMessage::RowDescription(columns) => encode_columns(out, columns),
            BackendMessage::DataRow(values) => encode_row(out, values),
            BackendMessage::CommandComplete(tag) => message(out, b'C', |out| put_text(out, tag)),
            BackendMessage::EmptyQueryResponse => message(out, b'I', |_| {}),
            BackendMessage::CopyBothResponse => message(out, b'W', |out| out.extend([0; 3])),
            BackendMessage::CopyOutResponse => message(out, b'H', |out| out.extend([0; 3])),
            BackendMessage::CopyInResponse => message(out, b'G', |out| out.extend([0; 3])),
            BackendMessage::CopyData(bytes) => {
                message(out, b'd', |out| out.extend_from_slice(bytes));
            }
            BackendMessage::CopyDone => message(out, b'c', |_| {}),
            BackendMessage::Notification => message(out, b'A', |out| out.extend([0; 6])),
            BackendMessage::NegotiateProtocolVersion { minor } => message(out, b'v', |out| {
                out.extend_from_slice(&minor.to_be_bytes());
                out.extend([0; 4]);
            }),
        }
    }
}

fn put_word(out: &mut Vec<u8>, tag: u8, word: i32) {
    message(out, tag, |out| out.extend_from_slice(&word.to_be_bytes()));
}

fn decode_copy<'a>(
    fields: &mut Fields<'_>,
    message: BackendMessage<'a>,
) -> Result<BackendMessage<'a>, ProtoError> {
    fields.u8("format")?;
    let columns = fields.u16("column count")?;
    for _ in 0..columns {
        fields.u16("column format")?;
    }
    Ok(message)
}

fn decode_columns(fields: &mut Fields<'_>) -> Result<Vec<FieldDescription>, ProtoError> {
    let count = fields.i16("column count")?;
    let count = usize::try_from(count).map_err(|_| fields.bad("column count", i64::from(count)))?;
    let mut columns = Vec::with_capacity(count.min(fields.remaining() / 19));
    for _ in 0..count {
        let name = fields.text("column name")?.to_owned();
        fields.u32("table")?;
        fields.u16("column number")?;
        let type_oid = fields.u32("type")?;
        let type_len = fields.i16("type length")?;
        fields.u32("type modifier")?;
        fields.u16("format")?;
        columns.push(FieldDescription {
            name,
            type_oid,
            type_len,
        });
    }
    Ok(columns)
}

fn encode_columns(out: &mut Vec<u8>, columns: &[FieldDescription]) {
    message(out, b'T', |out| {
        let count = i16::try_from(columns.len()).unwrap_or(i16::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for column in columns.iter().take(count.unsigned_abs().into()) {
            put_text(out, &column.name);
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&column.type_oid.to_be_bytes());
            out.extend_from_slice(&column.type_len.to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes());
            out.extend_from_slice(&[0; 2]);
        }
    });
}

fn decode_row<'a>(fields: &mut Fields<'a>) -> Result<Vec<Option<&'a [u8]>>, ProtoError> {
    let count = fields.i16("column count")?;
    let count = usize::try_from(count).map_err(|_| fields.bad("column count", i64::from(count)))?;
    let mut values = Vec::with_capacity(count.min(fields.remaining() / 4));
    for _ in 0..count {
        let len = fields.i32("value length")?;
        values.push(match usize::try_from(len) {
            Ok(len) => Some(fields.take(len, "value")?),
            Err(_) if len == -1 => None,
            Err(_) => return Err(fields.bad("value length", i64::from(len))),
        });
    }
    Ok(values)
}

fn encode_row(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    message(out, b'D', |out| {
        let count = i16::try_from(values.len()).unwrap_or(i16::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for value in values.iter().take(count.unsigned_abs().into()) {
            match value {
                None => out.extend_from_slice(&(-1i32).to_be_bytes()),
                Some(bytes) => {
                    let len = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
                    out.extend_from_slice(&len.to_be_bytes());
                    out.extend_from_slice(bytes);
                }
            }
        }
    });
}
