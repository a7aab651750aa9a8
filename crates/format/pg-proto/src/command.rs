//! The text of replication commands.

use pg_types::{Lsn, TimelineId};

/// Longest command text looked at, in bytes.
const MAX_COMMAND_LEN: usize = 8192;

/// A slot's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotKind {
    /// Keeps WAL.
    Physical {
        /// Keep WAL from the moment of creation.
        reserve_wal: bool,
    },
    /// Decodes WAL with an output plugin.
    Logical {
        /// The plugin.
        plugin: String,
    },
}

/// A command on a replication connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicationCommand {
    /// `IDENTIFY_SYSTEM`.
    IdentifySystem,
    /// `START_REPLICATION [SLOT name] [PHYSICAL] X/X [TIMELINE n]`.
    StartReplication {
        /// The slot, if named.
        slot: Option<String>,
        /// First byte wanted.
        start: Lsn,
        /// On which timeline; the server's own if absent.
        timeline: Option<TimelineId>,
    },
    /// `START_REPLICATION SLOT name LOGICAL …`.
    StartLogicalReplication {
        /// The slot.
        slot: String,
    },
    /// `TIMELINE_HISTORY n`.
    TimelineHistory(TimelineId),
    /// `CREATE_REPLICATION_SLOT name [TEMPORARY] PHYSICAL|LOGICAL …`.
    CreateReplicationSlot {
        /// The slot.
        slot: String,
        /// Gone at the connection's end.
        temporary: bool,
        /// Its kind.
        kind: SlotKind,
    },
    /// `READ_REPLICATION_SLOT name` (PostgreSQL 15 and later).
    ReadReplicationSlot {
        /// The slot.
        slot: String,
    },
    /// `DROP_REPLICATION_SLOT name [WAIT]`.
    DropReplicationSlot {
        /// The slot.
        slot: String,
    },
    /// `SHOW name`.
    Show {
        /// The setting, in lower case.
        name: String,
    },
    /// A replication command that exists but that Strandline does not serve: `BASE_BACKUP`,
    /// `UPLOAD_MANIFEST`, `ALTER_REPLICATION_SLOT`.
    Unsupported {
        /// The command's first word, in upper case.
        word: String,
    },
    /// Anything else: SQL.
    Sql(String),
}

/// A replication command that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandParseError {
    /// Longer than any command.
    #[error("command of {len} bytes is longer than the allowed {MAX_COMMAND_LEN}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// A quoted name or string without its end.
    #[error("unterminated quote in \"{command}\"")]
    UnterminatedQuote {
        /// The command.
        command: String,
    },
    /// Something else stands where `expected` should.
    #[error("expected {expected} but found {found} in \"{command}\"")]
    Unexpected {
        /// What the grammar wants.
        expected: &'static str,
        /// What is there.
        found: String,
        /// The command.
        command: String,
    },
}

/// `name` in double quotes, as a replication command takes it.
#[must_use]
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// An unquoted word, number or LSN.
    Word(String),
    /// A quoted identifier or string.
    Quoted(String),
    /// `( ) , ;` or another single character.
    Symbol(char),
}

impl ReplicationCommand {
    /// The command in `text`. Keywords are recognised in any case; what does not begin with a
    /// replication keyword is [`ReplicationCommand::Sql`].
    ///
    /// # Errors
    /// [`CommandParseError`] when a replication keyword is followed by something else than its
    /// grammar allows.
    pub fn parse(text: &str) -> Result<ReplicationCommand, CommandParseError> {
        let first: String = text
            .trim_start()
            .chars()
            .take_while(|c| c.is_ascii_alphabetic() || *c == '_')
            .map(|c| c.to_ascii_uppercase())
            .collect();
        let known = [
            "IDENTIFY_SYSTEM",
            "START_REPLICATION",
            "TIMELINE_HISTORY",
            "CREATE_REPLICATION_SLOT",
            "READ_REPLICATION_SLOT",
            "DROP_REPLICATION_SLOT",
            "SHOW",
        ];
        if ["BASE_BACKUP", "UPLOAD_MANIFEST", "ALTER_REPLICATION_SLOT"].contains(&first.as_str()) {
            return Ok(ReplicationCommand::Unsupported { word: first });
        }
        if !known.contains(&first.as_str()) {
            return Ok(ReplicationCommand::Sql(text.to_owned()));
        }
        if text.len() > MAX_COMMAND_LEN {
            return Err(CommandParseError::TooLong { len: text.len() });
        }
        let mut parser = Parser {
            text,
            tokens: tokens(text)?.into_iter().peekable(),
        };
        parser.tokens.next();
        let command = match first.as_str() {
            "IDENTIFY_SYSTEM" => ReplicationCommand::IdentifySystem,
            "START_REPLICATION" => parser.start_replication()?,
            "TIMELINE_HISTORY" => ReplicationCommand::TimelineHistory(parser.timeline()?),
            "CREATE_REPLICATION_SLOT" => parser.create_slot()?,
            "READ_REPLICATION_SLOT" => ReplicationCommand::ReadReplicationSlot {
                slot: parser.name("slot name")?,
            },
            "DROP_REPLICATION_SLOT" => {
                let slot = parser.name("slot name")?;
                parser.accept("WAIT");
                ReplicationCommand::DropReplicationSlot { slot }
            }
            _ => ReplicationCommand::Show {
                name: parser.setting()?,
            },
        };
        parser.finish()?;
        Ok(command)
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
}

impl Parser<'_> {
    fn unexpected(&self, expected: &'static str, found: Option<Token>) -> CommandParseError {
        let found = match found {
            None => "the end".to_owned(),
            Some(Token::Word(word)) => word,
            Some(Token::Quoted(text)) => format!("\"{text}\""),
            Some(Token::Symbol(symbol)) => symbol.to_string(),
        };
        CommandParseError::Unexpected {
            expected,
            found,
            command: self.text.to_owned(),
        }
    }

    /// Consumes the keyword if it is next.
    fn accept(&mut self, keyword: &str) -> bool {
        self.tokens
            .next_if(
                |token| matches!(token, Token::Word(word) if word.eq_ignore_ascii_case(keyword)),
            )
            .is_some()
    }

    /// An identifier: unquoted ones are folded to lower case as in SQL.
    fn name(&mut self, expected: &'static str) -> Result<String, CommandParseError> {
        match self.tokens.next() {
            Some(Token::Quoted(name)) => Ok(name),
            Some(Token::Word(word)) => Ok(word.to_ascii_lowercase()),
            other => Err(self.unexpected(expected, other)),
        }
    }

    fn setting(&mut self) -> Result<String, CommandParseError> {
        let mut name = self.name("setting name")?.to_ascii_lowercase();
        while self.tokens.next_if_eq(&Token::Symbol('.')).is_some() {
            name.push('.');
            name.push_str(&self.name("setting name")?.to_ascii_lowercase());
        }
        Ok(name)
    }

    fn word<T: std::str::FromStr>(
        &mut self,
        expected: &'static str,
    ) -> Result<T, CommandParseError> {
        let token = self.tokens.next();
        let parsed = match &token {
            Some(Token::Word(word)) => word.parse().ok(),
            _ => None,
        };
        parsed.ok_or_else(|| self.unexpected(expected, token))
    }

    fn timeline(&mut self) -> Result<TimelineId, CommandParseError> {
        let number: u32 = self.word("a timeline number")?;
        if number == 0 {
            let found = Some(Token::Word("0".to_owned()));
            return Err(self.unexpected("a timeline number above zero", found));
        }
        Ok(TimelineId(number))
    }

    fn start_replication(&mut self) -> Result<ReplicationCommand, CommandParseError> {
        let slot = if self.accept("SLOT") {
            Some(self.name("slot name")?)
        } else {
            None
        };
        if self.accept("LOGICAL") {
            let slot = slot.ok_or_else(|| self.unexpected("SLOT", None))?;
            // Position and options do not matter: logical replication is not served.
            while self.tokens.next().is_some() {}
            return Ok(ReplicationCommand::StartLogicalReplication { slot });
        }
        self.accept("PHYSICAL");
        let start = self.word("an LSN")?;
        let timeline = if self.accept("TIMELINE") {
            Some(self.timeline()?)
        } else {
            None
        };
        Ok(ReplicationCommand::StartReplication {
            slot,
            start,
            timeline,
        })
    }

    fn create_slot(&mut self) -> Result<ReplicationCommand, CommandParseError> {
        let slot = self.name("slot name")?;
        let temporary = self.accept("TEMPORARY");
        let kind = if self.accept("PHYSICAL") {
            let mut reserve_wal = self.accept("RESERVE_WAL");
            reserve_wal |= self.options()?.iter().any(|option| option == "reserve_wal");
            SlotKind::Physical { reserve_wal }
        } else if self.accept("LOGICAL") {
            let plugin = self.name("plugin name")?;
            while self
                .tokens
                .next_if(|token| *token != Token::Symbol(';'))
                .is_some()
            {}
            SlotKind::Logical { plugin }
        } else {
            let found = self.tokens.next();
            return Err(self.unexpected("PHYSICAL or LOGICAL", found));
        };
        Ok(ReplicationCommand::CreateReplicationSlot {
            slot,
            temporary,
            kind,
        })
    }

    /// `(name [value], …)` of PostgreSQL 15 and later: the names that are not switched off.
    fn options(&mut self) -> Result<Vec<String>, CommandParseError> {
        let mut names = Vec::new();
        if self.tokens.next_if_eq(&Token::Symbol('(')).is_none() {
            return Ok(names);
        }
        loop {
            let name = self.name("an option")?;
            let value = self
                .tokens
                .next_if(|token| !matches!(token, Token::Symbol(_)));
            let off = match value {
                Some(Token::Word(word) | Token::Quoted(word)) => {
                    ["false", "off", "0"].contains(&word.to_ascii_lowercase().as_str())
                }
                _ => false,
            };
            if !off {
                names.push(name);
            }
            match self.tokens.next() {
                Some(Token::Symbol(',')) => {}
                Some(Token::Symbol(')')) => return Ok(names),
                other => return Err(self.unexpected(", or )", other)),
            }
        }
    }

    fn finish(mut self) -> Result<(), CommandParseError> {
        while self.tokens.next_if_eq(&Token::Symbol(';')).is_some() {}
        match self.tokens.next() {
            None => Ok(()),
            extra => Err(self.unexpected("the end", extra)),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, CommandParseError> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            continue;
        }
        if c == '"' || c == '\'' {
            let mut quoted = String::new();
            loop {
                match chars.next() {
                    None => {
                        let command = text.to_owned();
                        return Err(CommandParseError::UnterminatedQuote { command });
                    }
                    Some(end) if end == c => {
                        if chars.next_if_eq(&c).is_none() {
                            break;
                        }
                        quoted.push(c);
                    }
                    Some(other) => quoted.push(other),
                }
            }
            tokens.push(Token::Quoted(quoted));
        } else if is_word(c) {
            let mut word = String::from(c);
            while let Some(next) = chars.next_if(|next| is_word(*next)) {
                word.push(next);
            }
            tokens.push(Token::Word(word));
        } else {
            tokens.push(Token::Symbol(c));
        }
    }
    Ok(tokens)
}

/// Letters, digits, and the slash of an LSN.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '/' || c == '$'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start(slot: Option<&str>, timeline: Option<u32>) -> ReplicationCommand {
        ReplicationCommand::StartReplication {
            slot: slot.map(str::to_owned),
            start: Lsn(0x1_0300_0000),
            timeline: timeline.map(TimelineId),
        }
    }

    #[test]
    fn every_command_that_stock_clients_send() {
        let slot = || "Slot \"1".to_owned();
        let create = |temporary, reserve_wal| ReplicationCommand::CreateReplicationSlot {
            slot: slot(),
            temporary,
            kind: SlotKind::Physical { reserve_wal },
        };
        let cases = [
            ("IDENTIFY_SYSTEM", ReplicationCommand::IdentifySystem),
            ("identify_system;", ReplicationCommand::IdentifySystem),
            (
                "START_REPLICATION 1/3000000 TIMELINE 7",
                start(None, Some(7)),
            ),
            (
                "START_REPLICATION SLOT \"a\" PHYSICAL 1/3000000",
                start(Some("a"), None),
            ),
            (
                "START_REPLICATION SLOT abC 1/3000000 TIMELINE 1",
                start(Some("abc"), Some(1)),
            ),
            (
                "TIMELINE_HISTORY 3",
                ReplicationCommand::TimelineHistory(TimelineId(3)),
            ),
            (
                "CREATE_REPLICATION_SLOT \"Slot \"\"1\" PHYSICAL",
                create(false, false),
            ),
            (
                "CREATE_REPLICATION_SLOT \"Slot \"\"1\" PHYSICAL RESERVE_WAL",
                create(false, true),
            ),
            (
                "CREATE_REPLICATION_SLOT \"Slot \"\"1\" TEMPORARY PHYSICAL ( RESERVE_WAL)",
                create(true, true),
            ),
            (
                "CREATE_REPLICATION_SLOT \"Slot \"\"1\" PHYSICAL (RESERVE_WAL false)",
                create(false, false),
            ),
            (
                "READ_REPLICATION_SLOT \"Slot \"\"1\"",
                ReplicationCommand::ReadReplicationSlot { slot: slot() },
            ),
            (
                "DROP_REPLICATION_SLOT \"Slot \"\"1\" WAIT",
                ReplicationCommand::DropReplicationSlot { slot: slot() },
            ),
            (
                "SHOW data_directory_mode",
                ReplicationCommand::Show {
                    name: "data_directory_mode".to_owned(),
                },
            ),
            (
                "START_REPLICATION SLOT \"a\" LOGICAL 0/0 (proto_version '1')",
                ReplicationCommand::StartLogicalReplication {
                    slot: "a".to_owned(),
                },
            ),
            (
                "BASE_BACKUP (LABEL 'x')",
                ReplicationCommand::Unsupported {
                    word: "BASE_BACKUP".to_owned(),
                },
            ),
            ("SELECT 1", ReplicationCommand::Sql("SELECT 1".to_owned())),
        ];
        for (text, expected) in cases {
            assert_eq!(ReplicationCommand::parse(text), Ok(expected), "{text}");
        }
        assert_eq!(quote_identifier("Slot \"1"), "\"Slot \"\"1\"");
    }

    #[test]
    fn wrong_grammar_is_an_error() {
        for text in [
            "START_REPLICATION",
            "START_REPLICATION 1-2",
            "START_REPLICATION 0/0 TIMELINE 0",
            "START_REPLICATION LOGICAL 0/0",
            "TIMELINE_HISTORY x",
            "TIMELINE_HISTORY 99999999999",
            "CREATE_REPLICATION_SLOT a",
            "CREATE_REPLICATION_SLOT \"a",
            "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL",
            "IDENTIFY_SYSTEM now",
            "SHOW",
        ] {
            assert!(ReplicationCommand::parse(text).is_err(), "{text}");
        }
        let long = format!("SHOW {}", "x".repeat(MAX_COMMAND_LEN));
        assert!(matches!(
            ReplicationCommand::parse(&long),
            Err(CommandParseError::TooLong { .. })
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(
            head in prop::sample::select(vec!["", "START_REPLICATION ", "CREATE_REPLICATION_SLOT ", "SHOW ", "TIMELINE_HISTORY "]),
            tail in "\\PC{0,60}",
        ) {
            let _ = ReplicationCommand::parse(&format!("{head}{tail}"));
        }
    }
}
