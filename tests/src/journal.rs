//! Clients that write numbered rows and remember which were acknowledged.
//!
//! **Claim checked at the end.** Every acknowledged row is there, none is there twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::sql::Sql;

/// A row: which client wrote it, its number, and when the commit was acknowledged.
type Acknowledgement = (u32, u64, Instant);

/// Clients that are writing.
#[derive(Debug)]
pub struct Journal {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<Acknowledgement>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Journal {
    /// Makes the table; once for each cluster.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(sql: &mut Sql) -> Result<()> {
        sql.run("CREATE TABLE journal (client int, n bigint, pad text, PRIMARY KEY (client, n))")?;
        Ok(())
    }

    /// Starts `clients` that write rows with `pad` bytes of padding, and come back when their
    /// connection breaks. Numbers of one client begin at `first`.
    #[must_use]
    pub fn start(port: u16, clients: u32, first: u64, pad: usize) -> Journal {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let clients = (0..clients)
            .map(|client| {
                let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
                thread::spawn(move || write(port, client, first, pad, &stop, &acknowledged))
            })
            .collect();
        Journal {
            stop,
            acknowledged,
            clients,
        }
    }

    /// How many rows have been acknowledged so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Longest time between `from` and `to` without an acknowledgement.
    #[must_use]
    pub fn longest_pause(&self, from: Instant, to: Instant) -> Duration {
        let acknowledged = self
            .acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut moments: Vec<Instant> = acknowledged
            .iter()
            .map(|(_, _, at)| *at)
            .filter(|at| (from..=to).contains(at))
            .collect();
        moments.extend([from, to]);
        moments.sort_unstable();
        let gaps = moments
            .iter()
            .zip(moments.iter().skip(1))
            .map(|(a, b)| b.duration_since(*a));
        gaps.max().unwrap_or_default()
    }

    /// Stops the clients; each finishes the statement it is in.
    ///
    /// # Errors
    /// When a client panicked.
    pub fn finish(self) -> Result<Acknowledged> {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            ensure!(client.join().is_ok(), "a client panicked");
        }
        let rows = self
            .acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(Acknowledged {
            rows: rows.iter().map(|(client, n, _)| (*client, *n)).collect(),
        })
    }
}

fn write(
    port: u16,
    client: u32,
    first: u64,
    pad: usize,
    stop: &AtomicBool,
    acknowledged: &Mutex<Vec<Acknowledgement>>,
) {
    let mut connection: Option<Sql> = None;
    let mut n = first;
    while !stop.load(Ordering::SeqCst) {
        let Some(sql) = &mut connection else {
            match Sql::connect(port) {
                Ok(sql) => connection = Some(sql),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            continue;
        };
        n += 1;
        // Text that does not compress, or nothing of the size would reach the disk.
        let insert = format!(
            "INSERT INTO journal SELECT {client}, {n}, left(string_agg(md5(i::text || '/{client}/{n}'), ''), {pad}) \
             FROM generate_series(0, {}) i",
            pad / 32
        );
        match sql.run(&insert) {
            Ok(_) => acknowledged
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((client, n, Instant::now())),
            Err(_) => connection = None,
        }
    }
}

/// Rows whose commit was acknowledged.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    rows: Vec<(u32, u64)>,
}

impl Acknowledged {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds those of another run.
    pub fn extend(&mut self, other: &Acknowledged) {
        self.rows.extend_from_slice(&other.rows);
    }

    /// Checks that every one is in the database, once.
    ///
    /// # Errors
    /// Names the first that is missing, or there twice.
    pub fn check(&self, sql: &mut Sql) -> Result<()> {
        let rows = sql.run("SELECT client, n FROM journal ORDER BY client, n")?;
        let mut present = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut fields = row.iter().flatten();
            let (Some(client), Some(n)) = (fields.next(), fields.next()) else {
                continue;
            };
            present.push((client.parse::<u32>()?, n.parse::<u64>()?));
        }
        for (one, next) in present.iter().zip(present.iter().skip(1)) {
            ensure!(one < next, "row {one:?} is there twice");
        }
        for row in &self.rows {
            ensure!(
                present.binary_search(row).is_ok(),
                "row {row:?} was acknowledged and is lost ({} of {} present)",
                present.len(),
                self.rows.len()
            );
        }
        Ok(())
    }
}
