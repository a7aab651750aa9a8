//! The kill test's statements: every client works on rows of its own, so the state after any set of
//! committed transactions does not depend on how clients interleave, and stock PostgreSQL can be
//! brought to the same state by applying the same transactions client by client.
//!
//! Each transaction also inserts its number into `journal`. A transaction whose acknowledgement was
//! lost is therefore known to have happened or not by looking for that row.

/// Tables and indexes of the workload.
pub const SCHEMA: &str = "
    CREATE TABLE journal (client int, n bigint, at timestamptz DEFAULT now());
    CREATE UNIQUE INDEX journal_key ON journal (client, n);
    CREATE TABLE item (client int, n bigint, amount bigint NOT NULL, note text,
                       PRIMARY KEY (client, n));
    CREATE INDEX item_amount ON item (amount);
    CREATE INDEX item_note_hash ON item USING hash (note);
    CREATE TABLE total (client int PRIMARY KEY, transactions bigint, amount bigint);
    CREATE TABLE document (client int, n bigint, words text[]);
    CREATE INDEX document_words ON document USING gin (words);
    CREATE SEQUENCE ticket;
";

/// Statements that give `client` its counter row.
#[must_use]
pub fn register(client: u32) -> String {
    format!("INSERT INTO total VALUES ({client}, 0, 0)")
}

/// Transaction number `n` of `client`, as one string for the simple query protocol.
///
/// What it does is a function of (client, n) alone; `previous` numbers may or may not exist, so
/// updates and deletes touch whatever is there, the same on every server.
#[must_use]
pub fn transaction(client: u32, n: u64) -> String {
    let body = match n % 8 {
        3 => format!(
            "UPDATE item SET amount = amount + {n}, note = note || '+' WHERE client = {client} AND n BETWEEN {} AND {};",
            n.saturating_sub(9),
            n.saturating_sub(1),
        ),
        5 => format!(
            "DELETE FROM item WHERE client = {client} AND n = {};",
            n.saturating_sub(4),
        ),
        6 => format!(
            "SAVEPOINT a; INSERT INTO item VALUES ({client}, {n}, -1, 'undone'); ROLLBACK TO a; \
             INSERT INTO item VALUES ({client}, {n}, {}, repeat('x', {})); RELEASE a;",
            n * 3,
            n % 700,
        ),
        7 => format!(
            "INSERT INTO document VALUES ({client}, {n}, ARRAY['w{}', 'w{}', 'c{client}']); SELECT nextval('ticket');",
            n % 13,
            n % 101,
        ),
        _ => format!(
            "INSERT INTO item VALUES ({client}, {n}, {}, md5('{client}/{n}'));",
            (n * 7919) % 1_000_003,
        ),
    };
    format!(
        "BEGIN; INSERT INTO journal (client, n) VALUES ({client}, {n}); {body} \
         UPDATE total SET transactions = transactions + 1, amount = amount + {n} WHERE client = {client}; COMMIT"
    )
}

/// Queries whose answers must be equal on both servers.
pub const COMPARISONS: &[&str] = &[
    "SELECT count(*), count(DISTINCT (client, n)) FROM journal",
    "SELECT md5(string_agg(client || ':' || n, ',' ORDER BY client, n)) FROM journal",
    "SELECT count(*), sum(amount), md5(string_agg(client || ':' || n || ':' || amount || ':' || note, ',' ORDER BY client, n)) FROM item",
    "SELECT md5(string_agg(client || ':' || transactions || ':' || amount, ',' ORDER BY client)) FROM total",
    "SELECT count(*), md5(string_agg(client || ':' || n || ':' || words::text, ',' ORDER BY client, n)) FROM document",
];
