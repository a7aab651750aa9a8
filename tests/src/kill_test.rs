//! The kill test: clients write and remember what was acknowledged while processes are killed.
//!
//! **Claim.** Whatever is killed, at whatever moment: every acknowledged transaction is there, none is
//! there twice, heap and indexes agree (`amcheck`), and the database is in the state to which stock
//! PostgreSQL comes by applying the same transactions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::process::{self, Role};
use testkit::random::Random;
use testkit::{PgBinaries, StockServer};

use crate::sql::{Rows, Sql};
use crate::workload;

/// How long and how hard to test.
#[derive(Debug, Clone)]
pub struct KillOptions {
    /// Kills.
    pub rounds: u32,
    /// Clients writing all the time.
    pub clients: u32,
    /// Log stores, 1 or 3.
    pub log_stores: u32,
    /// Seed of victims and moments.
    pub seed: u64,
    /// Rounds between two full checks; there is always one at the end.
    pub check_every: u32,
}

/// What happened.
#[derive(Debug, Clone, Default)]
pub struct KillReport {
    /// Transactions whose commit was acknowledged.
    pub acknowledged: u64,
    /// Transactions whose fate the client did not learn.
    pub unknown: u64,
    /// Of those, how many turned out to be committed.
    pub unknown_committed: u64,
    /// Kills by victim.
    pub kills: BTreeMap<String, u32>,
    /// Full checks made.
    pub checks: u32,
    /// Longest time from a kill to the next answered query.
    pub longest_recovery_ms: u128,
}

impl fmt::Display for KillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} commits acknowledged, all present, none twice; {} commits with unknown outcome, {} of them present",
            self.acknowledged, self.unknown, self.unknown_committed
        )?;
        writeln!(
            f,
            "{} full checks; longest recovery {} ms",
            self.checks, self.longest_recovery_ms
        )?;
        let kills: u32 = self.kills.values().sum();
        write!(f, "{kills} kills:")?;
        for (victim, count) in &self.kills {
            write!(f, " {victim} {count};")?;
        }
        Ok(())
    }
}

/// Numbers that one client used, and what it learned of them.
#[derive(Debug, Default)]
struct Ledger {
    acknowledged: Vec<u64>,
    unknown: Vec<u64>,
}

type Ledgers = Arc<Vec<Mutex<Ledger>>>;

/// Who is to die in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    One(Role),
    AllButSupervisor,
    Everything,
}

const VICTIMS: &[(Victim, &str)] = &[
    (Victim::One(Role::Backend), "backend"),
    (Victim::One(Role::Auxiliary), "auxiliary process"),
    (Victim::One(Role::Postmaster), "postmaster"),
    (Victim::One(Role::LogStore), "log store"),
    (Victim::One(Role::LogStore), "log store"),
    (Victim::One(Role::StorageNode), "storage node"),
    (Victim::One(Role::StorageNode), "storage node"),
    (Victim::One(Role::ComputeManager), "compute manager"),
    (Victim::AllButSupervisor, "all services at once"),
    (Victim::Everything, "everything, supervisor included"),
];

/// Runs the test.
///
/// # Errors
/// At the first acknowledged row that is missing, row that is there twice, check that fails,
/// difference from stock PostgreSQL, or process that does not come back; names the round and seed.
pub fn run(options: &KillOptions, binaries: &PgBinaries) -> Result<KillReport> {
    let mut cluster = Cluster::start(ClusterOptions {
        log_stores: options.log_stores,
        ..ClusterOptions::new(binaries.directory())
    })?;
    match run_on(&mut cluster, options, binaries) {
        Ok(report) => {
            cluster.down()?;
            Ok(report)
        }
        Err(error) => Err(error.context(format!("seed {}\n{}", options.seed, cluster.logs()))),
    }
}

fn run_on(
    cluster: &mut Cluster,
    options: &KillOptions,
    binaries: &PgBinaries,
) -> Result<KillReport> {
    let mut setup = Sql::connect(cluster.port())?;
    setup.run("CREATE EXTENSION amcheck")?;
    setup.run(workload::SCHEMA)?;
    for client in 0..options.clients {
        setup.run(&workload::register(client))?;
    }
    drop(setup);

    let ledgers: Ledgers = Arc::new(
        (0..options.clients)
            .map(|_| Mutex::new(Ledger::default()))
            .collect(),
    );
    let stop = Arc::new(AtomicBool::new(false));
    let progress = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..options.clients)
        .map(|client| {
            let (ledgers, stop, progress) = (ledgers.clone(), stop.clone(), progress.clone());
            let port = cluster.port();
            thread::spawn(move || write_until(&stop, client, port, &ledgers, &progress))
        })
        .collect();

    let mut report = KillReport::default();
    let outcome = kill_rounds(cluster, options, &ledgers, &progress, &mut report);
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer
            .join()
            .map_err(|_| anyhow::anyhow!("a writer panicked"))?;
    }
    outcome?;
    check_present(cluster, &ledgers, &mut report).context("after the last round")?;
    check_structures(cluster).context("after the last round")?;
    compare_with_stock(cluster, &ledgers, options, binaries)?;
    report.checks += 1;
    Ok(report)
}

fn kill_rounds(
    cluster: &mut Cluster,
    options: &KillOptions,
    ledgers: &Ledgers,
    progress: &AtomicU64,
    report: &mut KillReport,
) -> Result<()> {
    let mut random = Random::new(options.seed);
    for round in 1..=options.rounds {
        thread::sleep(Duration::from_millis(random.below(400)));
        let (victim, name) = *random.pick(VICTIMS).context("there are victims")?;
        let killed_at = Instant::now();
        kill(cluster, victim, &mut random)?;
        *report.kills.entry(name.to_owned()).or_default() += 1;
        let context = || format!("round {round}, after killing {name}");
        wait_until_it_answers(cluster).with_context(context)?;
        report.longest_recovery_ms = report
            .longest_recovery_ms
            .max(killed_at.elapsed().as_millis());
        // Clients must get on with it, not only a lone query.
        let before = progress.load(Ordering::SeqCst);
        let deadline = Instant::now() + Duration::from_secs(60);
        while progress.load(Ordering::SeqCst) < before + 3 {
            ensure!(
                Instant::now() < deadline,
                "no client commits any more: {}",
                context()
            );
            thread::sleep(Duration::from_millis(5));
        }
        if round % options.check_every == 0 {
            check_present(cluster, ledgers, report).with_context(context)?;
            check_structures(cluster).with_context(context)?;
            report.checks += 1;
        }
        eprint!(
            "\rround {round}/{}: {} commits acknowledged   ",
            options.rounds,
            progress.load(Ordering::SeqCst)
        );
    }
    eprintln!();
    Ok(())
}

fn kill(cluster: &mut Cluster, victim: Victim, random: &mut Random) -> Result<()> {
    match victim {
        Victim::One(role) => {
            if let Some(pid) = random.pick(&cluster.pids(role)) {
                process::signal(*pid, libc::SIGKILL);
            }
        }
        Victim::AllButSupervisor => {
            let root = cluster.supervisor().context("the supervisor runs")?;
            for (one, role) in process::family(root) {
                if role != Role::Supervisor {
                    process::signal(one.pid, libc::SIGKILL);
                }
            }
        }
        Victim::Everything => {
            cluster.kill_everything();
            cluster.up()?;
        }
    }
    Ok(())
}

/// A connection that has answered a query, as soon as there is one.
fn wait_until_it_answers(cluster: &Cluster) -> Result<Sql> {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let answer = Sql::connect(cluster.port()).and_then(|mut sql| {
            sql.run("SELECT 1")?;
            Ok(sql)
        });
        match answer {
            Ok(sql) => return Ok(sql),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("the database did not come back within 90 s"));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn write_until(stop: &AtomicBool, client: u32, port: u16, ledgers: &Ledgers, progress: &AtomicU64) {
    let mut connection: Option<Sql> = None;
    let mut n = 0u64;
    while !stop.load(Ordering::SeqCst) {
        let Some(sql) = &mut connection else {
            match Sql::connect(port) {
                Ok(sql) => connection = Some(sql),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
            continue;
        };
        n += 1;
        let result = sql.run(&workload::transaction(client, n));
        let Some(ledger) = ledgers.get(client as usize) else {
            return;
        };
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() {
            ledger.acknowledged.push(n);
            progress.fetch_add(1, Ordering::SeqCst);
        } else {
            ledger.unknown.push(n);
            connection = None;
        }
    }
}

/// Transactions that are in the database, by client. Every acknowledged one must be, none twice, and
/// nothing that was never attempted.
fn check_present(
    cluster: &Cluster,
    ledgers: &Ledgers,
    report: &mut KillReport,
) -> Result<Vec<Vec<u64>>> {
    // What was acknowledged before the query began must be in its answer.
    let known: Vec<(Vec<u64>, Vec<u64>)> = ledgers
        .iter()
        .map(|ledger| {
            let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            (ledger.acknowledged.clone(), ledger.unknown.clone())
        })
        .collect();
    let mut all = Vec::new();
    report.acknowledged = 0;
    report.unknown = 0;
    report.unknown_committed = 0;
    let mut sql = wait_until_it_answers(cluster)?;
    for (client, (acknowledged, unknown)) in known.iter().enumerate() {
        let rows = retry(
            cluster,
            &mut sql,
            &format!("SELECT n FROM journal WHERE client = {client} ORDER BY n"),
        )?;
        let present: Vec<u64> = rows
            .iter()
            .filter_map(|row| row.first()?.as_deref()?.parse().ok())
            .collect();
        ensure!(
            present.windows(2).all(|pair| pair[0] < pair[1]),
            "client {client}: a transaction is there twice"
        );
        for n in acknowledged {
            ensure!(
                present.binary_search(n).is_ok(),
                "client {client}: transaction {n} was acknowledged and is lost"
            );
        }
        report.acknowledged += acknowledged.len() as u64;
        report.unknown += unknown.len() as u64;
        report.unknown_committed += unknown
            .iter()
            .filter(|n| present.binary_search(n).is_ok())
            .count() as u64;
        all.push(present);
    }
    Ok(all)
}

/// `amcheck` on every heap and B-tree of the workload and the catalogs, and index scans against heap scans.
fn check_structures(cluster: &Cluster) -> Result<()> {
    let mut sql = wait_until_it_answers(cluster)?;
    retry(
        cluster,
        &mut sql,
        "SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam \
         WHERE a.amname = 'btree' AND c.relkind = 'i' AND c.relpersistence = 'p'",
    )?;
    let rows = retry(
        cluster,
        &mut sql,
        "SELECT c.relname, v.blkno, v.offnum, v.msg FROM pg_class c, LATERAL verify_heapam(c.oid) v \
         WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p'",
    )?;
    if let Some(row) = rows.first() {
        bail!("verify_heapam: {row:?} (and {} more)", rows.len() - 1);
    }
    for (query, index) in [
        (
            "SELECT count(*), sum(amount) FROM item WHERE note = repeat('x', 14)",
            "hash",
        ),
        (
            "SELECT count(*), sum(n) FROM document WHERE words @> ARRAY['w3']",
            "gin",
        ),
    ] {
        let (by_heap, by_index) = both_ways(cluster, &mut sql, query)?;
        ensure!(
            by_heap == by_index,
            "the {index} index finds {by_index:?}, the heap has {by_heap:?}"
        );
    }
    Ok(())
}

/// The answer to `query` by sequential scan and by index, in one snapshot because writers go on.
fn both_ways(cluster: &Cluster, sql: &mut Sql, query: &str) -> Result<(Rows, Rows)> {
    let attempt = |sql: &mut Sql| -> Result<(Rows, Rows)> {
        sql.run("BEGIN ISOLATION LEVEL REPEATABLE READ")?;
        sql.run("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")?;
        let by_heap = sql.run(query)?;
        sql.run("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_bitmapscan = on")?;
        let by_index = sql.run(query)?;
        sql.run("COMMIT")?;
        Ok((by_heap, by_index))
    };
    attempt(sql).or_else(|_| {
        *sql = wait_until_it_answers(cluster)?;
        attempt(sql)
    })
}

/// Runs a query that must succeed, on a new connection if a kill took the old one.
fn retry(cluster: &Cluster, sql: &mut Sql, query: &str) -> Result<Rows> {
    let mut last = None;
    for _ in 0..10 {
        match sql.run(query) {
            Ok(rows) => return Ok(rows),
            Err(error) => last = Some(error),
        }
        *sql = wait_until_it_answers(cluster)?;
    }
    Err(last
        .context("attempts were made")?
        .context(query.to_owned()))
}

/// Applies to a stock server what is in the database, client by client, and compares the two.
fn compare_with_stock(
    cluster: &Cluster,
    ledgers: &Ledgers,
    options: &KillOptions,
    binaries: &PgBinaries,
) -> Result<()> {
    let present = check_present(cluster, ledgers, &mut KillReport::default())?;
    let directory = tempfile::Builder::new()
        .prefix("strandline-stock-")
        .tempdir()?;
    let mut stock = StockServer::init(binaries.clone(), directory.path(), &[], &[])?;
    stock.start()?;
    let host = stock.socket_dir().display().to_string();
    let mut reference = Sql::connect_to(&host, stock.port(), "postgres")?;
    reference.run(workload::SCHEMA)?;
    for client in 0..options.clients {
        reference.run(&workload::register(client))?;
    }
    for (client, numbers) in (0..options.clients).zip(&present) {
        for n in numbers {
            reference.run(&workload::transaction(client, *n))?;
        }
    }
    let mut survivor = wait_until_it_answers(cluster)?;
    for query in workload::COMPARISONS {
        let (ours, theirs) = (survivor.run(query)?, reference.run(query)?);
        ensure!(
            ours == theirs,
            "{query}\n  strandline: {ours:?}\n  stock:      {theirs:?}"
        );
    }
    drop(reference);
    stock.stop()
}
