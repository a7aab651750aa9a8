//! The first packet of a connection, which has no type byte.

use crate::ProtoError;
use crate::wire::{Fields, length_prefixed, put_text};

/// Version 3.0 of the protocol.
pub const PROTOCOL_VERSION_3: u32 = 3 << 16;

/// Longest start-up packet (`MAX_STARTUP_PACKET_LENGTH`).
pub const MAX_STARTUP_LEN: u32 = 10_000;

const CANCEL_REQUEST: u32 = 1234 << 16 | 5678;
const SSL_REQUEST: u32 = 1234 << 16 | 5679;
const GSSENC_REQUEST: u32 = 1234 << 16 | 5680;

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartupPacket {
    /// Asks for TLS; answered by one byte, `N` to refuse.
    SslRequest,
    /// Asks for GSSAPI encryption; answered by one byte, `N` to refuse.
    GssEncRequest,
    /// Asks to cancel what another connection runs; not answered.
    CancelRequest {
        /// Process id from that connection's `BackendKeyData`.
        process: u32,
        /// Its secret.
        secret: u32,
    },
    /// Begins a session.
    Startup {
        /// Minor version of protocol 3 that the client asks for.
        minor: u16,
        /// Names and values, `user` among them.
        parameters: Vec<(String, String)>,
    },
}

impl StartupPacket {
    /// The packet in `body`, as cut out by [`crate::Inbox::next_startup`].
    ///
    /// # Errors
    /// [`ProtoError`].
    pub fn decode(body: &[u8]) -> Result<StartupPacket, ProtoError> {
        let mut fields = Fields::new(0, body);
        let code = fields.u32("protocol version")?;
        match code {
            SSL_REQUEST => fields.end().map(|()| StartupPacket::SslRequest),
            GSSENC_REQUEST => fields.end().map(|()| StartupPacket::GssEncRequest),
            CANCEL_REQUEST => {
                let process = fields.u32("process id")?;
                let secret = fields.u32("secret")?;
                fields.end()?;
                Ok(StartupPacket::CancelRequest { process, secret })
            }
            _ if code >> 16 == 3 => {
                let mut parameters = Vec::new();
                loop {
                    let name = fields.text("parameter name")?;
                    if name.is_empty() {
                        break;
                    }
                    let value = fields.text("parameter value")?;
                    parameters.push((name.to_owned(), value.to_owned()));
                }
                fields.end()?;
                Ok(StartupPacket::Startup {
                    minor: (code & 0xFFFF) as u16,
                    parameters,
                })
            }
            _ => Err(ProtoError::BadVersion {
                major: (code >> 16) as u16,
                minor: (code & 0xFFFF) as u16,
            }),
        }
    }

    /// Appends the packet with its length word.
    pub fn encode(&self, out: &mut Vec<u8>) {
        length_prefixed(out, |out| match self {
            StartupPacket::SslRequest => out.extend_from_slice(&SSL_REQUEST.to_be_bytes()),
            StartupPacket::GssEncRequest => out.extend_from_slice(&GSSENC_REQUEST.to_be_bytes()),
            StartupPacket::CancelRequest { process, secret } => {
                out.extend_from_slice(&CANCEL_REQUEST.to_be_bytes());
                out.extend_from_slice(&process.to_be_bytes());
                out.extend_from_slice(&secret.to_be_bytes());
            }
            StartupPacket::Startup { minor, parameters } => {
                let version = PROTOCOL_VERSION_3 | u32::from(*minor);
                out.extend_from_slice(&version.to_be_bytes());
                for (name, value) in parameters {
                    put_text(out, name);
                    put_text(out, value);
                }
                out.push(0);
            }
        });
    }
}
