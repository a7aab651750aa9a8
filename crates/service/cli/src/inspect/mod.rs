//! `strandline inspect`: what the bytes of a file or page say, as a table for people and as JSON
//! for scripts.
//!
//! Every function takes bytes and returns both forms; reading the bytes is the command's business.

pub mod control;
pub mod layer;
pub mod page;
pub mod wal;

use std::fmt::Write as _;

/// What an inspection found.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The table for people; ends with a line end.
    pub text: String,
    /// The same for scripts. Keys do not change between releases; new ones may be added.
    pub json: serde_json::Value,
}

/// Lines of a label and a value, the values in one column.
fn labelled(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |mut text, (label, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:width$}  {value}");
        text
    })
}

/// `on` or `off`, as settings are shown.
const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
