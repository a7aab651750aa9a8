//! How a command says that it failed: one line, and a hint.

use std::fmt;

/// A failure as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Result of a command.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure without a hint.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            hint: None,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what was being done in front.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// A library's error; a trailing `(hint: …)` in its text becomes the hint.
    #[must_use]
    pub fn from_text(text: &str) -> Failure {
        let text = text.trim();
        if let Some((message, hint)) = text.rsplit_once(" (hint: ")
            && let Some(hint) = hint.strip_suffix(')')
        {
            return Failure::new(message).hint(hint);
        }
        Failure::new(text)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::from_text(&error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "strandline: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_taken_out_of_library_errors() {
        let failure = Failure::from_text("no such file (hint: make one)");
        assert_eq!(
            failure.to_string(),
            "strandline: no such file\nhint: make one"
        );
        let failure = Failure::from_text("ends (in parentheses)");
        assert_eq!(failure.to_string(), "strandline: ends (in parentheses)");
    }
}
