//! A connection for test queries.

use std::time::Duration;

use anyhow::{Context, Result};
use pg_client::PgClient;

/// Rows of text, as the simple query protocol gives them.
pub type Rows = Vec<Vec<Option<String>>>;

/// A connection as the superuser `postgres`.
#[derive(Debug)]
pub struct Sql {
    client: PgClient,
}

/// No statement of these tests takes this long; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(120);

impl Sql {
    /// Connects over TCP on the loopback.
    ///
    /// # Errors
    /// When the server is not there or refuses.
    pub fn connect(port: u16) -> Result<Sql> {
        Sql::connect_to("127.0.0.1", port, "postgres")
    }

    /// Connects to `host`, a name or the directory of a Unix socket.
    ///
    /// # Errors
    /// When the server is not there or refuses.
    pub fn connect_to(host: &str, port: u16, database: &str) -> Result<Sql> {
        let mut client = PgClient::connect(host, port, "postgres", database, &[], false)?;
        client.set_timeout(Some(PATIENCE));
        Ok(Sql { client })
    }

    /// Runs `sql`, which may be several statements, and returns the last one's rows.
    ///
    /// # Errors
    /// When a statement fails or the connection breaks; the error names the statement.
    pub fn run(&mut self, sql: &str) -> Result<Rows> {
        let shown: String = sql.chars().take(200).collect();
        Ok(self.client.simple_query(sql).with_context(|| shown)?.rows)
    }

    /// The only value of a query with one row and one column.
    ///
    /// # Errors
    /// As [`Sql::run`]; also when there is no value.
    pub fn value(&mut self, sql: &str) -> Result<String> {
        self.run(sql)?
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next().flatten())
            .with_context(|| format!("no value: {sql}"))
    }
}
