//! What an `ErrorResponse` or `NoticeResponse` says.

use std::fmt;

use crate::ProtoError;
use crate::wire::{Fields, put_text};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The command failed.
    Error,
    /// The connection ends.
    Fatal,
    /// The server restarts.
    Panic,
    /// Anything milder: warnings, notices, debug output.
    Notice,
}

impl Severity {
    /// The untranslated word in field `V`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
            Severity::Panic => "PANIC",
            Severity::Notice => "NOTICE",
        }
    }

    fn parse(word: &str) -> Severity {
        match word {
            "ERROR" => Severity::Error,
            "FATAL" => Severity::Fatal,
            "PANIC" => Severity::Panic,
            _ => Severity::Notice,
        }
    }
}

/// The fields of an error or notice that Strandline reads or writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFields {
    /// How bad it is.
    pub severity: Severity,
    /// SQLSTATE, five characters.
    pub code: String,
    /// The message.
    pub message: String,
    /// More about it, if given.
    pub detail: Option<String>,
    /// What to do, if given.
    pub hint: Option<String>,
}

impl ErrorFields {
    /// An error with neither detail nor hint.
    #[must_use]
    pub fn new(severity: Severity, code: &str, message: impl Into<String>) -> ErrorFields {
        ErrorFields {
            severity,
            code: code.to_owned(),
            message: message.into(),
            detail: None,
            hint: None,
        }
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<ErrorFields, ProtoError> {
        let mut error = ErrorFields::new(Severity::Error, "", "");
        let mut localized = None;
        let mut severity = None;
        loop {
            let kind = fields.u8("terminator")?;
            if kind == 0 {
                break;
            }
            // Server messages may be in the server's own encoding: never fail because of it.
            let text = lossy_text(fields)?;
            match kind {
                b'S' => localized = Some(text),
                b'V' => severity = Some(text),
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                _ => {}
            }
        }
        if let Some(word) = severity.or(localized) {
            error.severity = Severity::parse(&word);
        }
        fields.end()?;
        Ok(error)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut field = |kind: u8, text: &str| {
            out.push(kind);
            put_text(out, text);
        };
        field(b'S', self.severity.word());
        field(b'V', self.severity.word());
        field(b'C', &self.code);
        field(b'M', &self.message);
        if let Some(detail) = &self.detail {
            field(b'D', detail);
        }
        if let Some(hint) = &self.hint {
            field(b'H', hint);
        }
        out.push(0);
    }
}

fn lossy_text(fields: &mut Fields<'_>) -> Result<String, ProtoError> {
    let mut bytes = Vec::new();
    loop {
        match fields.u8("text")? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            byte => bytes.push(byte),
        }
    }
}

impl fmt::Display for ErrorFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} (SQLSTATE {})",
            self.severity.word(),
            self.message,
            self.code
        )?;
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}
