//! Where a service listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address: `unix:/path` or `tcp:host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Endpoint {
    /// A Unix socket's path.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// A text that is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not an endpoint; expected unix:/path or tcp:host:port")]
pub struct EndpointParseError {
    /// The text that was given.
    pub text: String,
}

impl FromStr for Endpoint {
    type Err = EndpointParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || EndpointParseError {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => {
                Ok(Endpoint::Unix(PathBuf::from(path)))
            }
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(fail)?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(fail());
                }
                Ok(Endpoint::Tcp(address.to_owned()))
            }
            _ => Err(fail()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> String {
        endpoint.to_string()
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointParseError;

    fn try_from(text: String) -> Result<Endpoint, EndpointParseError> {
        text.parse()
    }
}
