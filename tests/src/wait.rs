//! Waiting for something to become true, with a limit.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit::cluster::Cluster;

use crate::sql::Sql;

/// Asks `question` until it answers with something.
///
/// # Errors
/// The last error, or that there was no answer, after `patience`; `what` names what did not happen.
pub fn eventually<T>(
    patience: Duration,
    what: &str,
    mut question: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        let answer = question();
        match answer {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) if Instant::now() > deadline => {
                bail!("not within {} s: {what}", patience.as_secs())
            }
            Err(error) if Instant::now() > deadline => {
                return Err(error)
                    .with_context(|| format!("not within {} s: {what}", patience.as_secs()));
            }
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A connection, as soon as there can be one.
///
/// # Errors
/// When the database does not answer within 90 s.
pub fn connected(cluster: &Cluster) -> Result<Sql> {
    eventually(Duration::from_secs(90), "the database answers", || {
        let mut sql = Sql::connect(cluster.port())?;
        sql.run("SELECT 1")?;
        Ok(Some(sql))
    })
}

/// Runs `claim` on a cluster and then stops it; when something fails, the error has the logs.
///
/// # Errors
/// What `claim` returns, or that the cluster does not stop.
pub fn on(mut cluster: Cluster, claim: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let outcome = claim(&mut cluster).and_then(|()| cluster.down());
    outcome.map_err(|error| {
        let logs = cluster.logs();
        error.context(logs)
    })
}
