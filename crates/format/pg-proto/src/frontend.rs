//! What a client says after start-up.

use crate::wire::{Fields, message, put_text};
use crate::{ProtoError, RawMessage};

/// A message of a client, as far as simple queries and replication need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontendMessage<'a> {
    /// `Q`: a simple query or a replication command.
    Query(&'a str),
    /// `d`: a piece of the copy stream.
    CopyData(&'a [u8]),
    /// `c`: the client's end of the copy stream.
    CopyDone,
    /// `f`: the client gives the copy up.
    CopyFail(&'a str),
    /// `p`: an answer to an authentication request.
    Password(&'a [u8]),
    /// `X`: goodbye.
    Terminate,
    /// A message of the extended query protocol or a function call, which Strandline's servers
    /// refuse: `P B D E C S H F`.
    Unsupported {
        /// The message's type byte.
        tag: u8,
    },
}

impl<'a> FrontendMessage<'a> {
    /// The message in `raw`.
    ///
    /// # Errors
    /// [`ProtoError`].
    pub fn decode(raw: RawMessage<'a>) -> Result<FrontendMessage<'a>, ProtoError> {
        let mut fields = Fields::new(raw.tag, raw.body);
        let decoded = match raw.tag {
            b'Q' => FrontendMessage::Query(fields.text("query")?),
            b'd' => FrontendMessage::CopyData(fields.rest()),
            b'c' => FrontendMessage::CopyDone,
            b'f' => FrontendMessage::CopyFail(fields.text("reason")?),
            b'p' => FrontendMessage::Password(fields.rest()),
            b'X' => FrontendMessage::Terminate,
            b'P' | b'B' | b'D' | b'E' | b'C' | b'S' | b'H' | b'F' => {
                return Ok(FrontendMessage::Unsupported { tag: raw.tag });
            }
            tag => return Err(ProtoError::UnknownMessage { tag: tag as char }),
        };
        fields.end()?;
        Ok(decoded)
    }

    /// Appends the message; an `Unsupported` one is written without a body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            FrontendMessage::Query(text) => message(out, b'Q', |out| put_text(out, text)),
            FrontendMessage::CopyData(bytes) => {
                message(out, b'd', |out| out.extend_from_slice(bytes));
            }
            FrontendMessage::CopyDone => message(out, b'c', |_| {}),
            FrontendMessage::CopyFail(text) => message(out, b'f', |out| put_text(out, text)),
            FrontendMessage::Password(bytes) => {
                message(out, b'p', |out| out.extend_from_slice(bytes));
            }
            FrontendMessage::Terminate => message(out, b'X', |_| {}),
            FrontendMessage::Unsupported { tag } => message(out, *tag, |_| {}),
        }
    }
}
