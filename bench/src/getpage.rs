//! Latency of GetPage@LSN at one client, over the Unix socket that the shim uses.

use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use pg_types::{BLCKSZ, Lsn};
use shim_abi::wire::GetPages;
use testkit::PgBinaries;
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::random::Random;

use crate::Effort;
use crate::pgbench::Side;
use crate::report::{Report, Series};
use crate::wire::PageClient;

/// Reads of one measurement.
const READS: u32 = 50_000;
/// Distinct pages that are read: they fit the storage node's cache of materialised pages.
const PAGES: u64 = 20_000;

/// Runs the bench: pages whose log chain has been replayed already, then pages read for the first time.
///
/// # Errors
/// When the cluster fails or a page is not served.
pub fn run(binaries: &PgBinaries, effort: &Effort) -> Result<Report> {
    let mut cluster = Cluster::start(ClusterOptions::new(binaries.directory()))?;
    let side = Side::strandline(&cluster, binaries);
    let server = side.psql("SHOW server_version")?.trim().to_owned();
    let mut report = Report::new(
        "getpage",
        "GetPage@LSN of random pages of pgbench_accounts, one client",
        &server,
    );
    side.initialize(effort.scale)?;
    side.tps(2, effort.seconds, &[])?;
    let place = side.psql(
        "SELECT pg_relation_filenode('pgbench_accounts'), oid, pg_relation_size('pgbench_accounts') / 8192 \
         FROM pg_database WHERE datname = 'postgres'",
    )?;
    let mut fields = place.trim().split('|');
    let mut number = || -> Result<u32> { Ok(fields.next().context("three columns")?.parse()?) };
    let (rel, db, blocks) = (number()?, number()?, number()?);
    // A new incarnation reads at an LSN that covers the load.
    cluster.down()?;
    cluster.up()?;
    let status = cluster.status()?;
    let text = |path: &str| -> Result<String> {
        Ok(status
            .pointer(path)
            .and_then(|value| value.as_str())
            .context("no start LSN")?
            .to_owned())
    };
    let lsn: Lsn = text("/compute/status/start_lsn")?.parse()?;
    let sysid = status
        .pointer("/system_identifier")
        .and_then(serde_json::Value::as_u64)
        .context("no system identifier")?;
    let socket = cluster.data().join("run/pages.sock");
    let mut client = PageClient::connect(&socket, sysid, lsn)?;

    let mut first = Series::new("first read p50/strandline", "us");
    let mut p50 = Series::new("materialised p50/strandline", "us");
    let mut p99 = Series::new("materialised p99/strandline", "us");
    let mut random = Random::new(3);
    let span = PAGES.min(u64::from(blocks));
    let request = |block: u64| -> Result<GetPages> {
        Ok(GetPages {
            request_id: 0,
            space: 1663,
            db,
            rel,
            fork: 0,
            first_block: u32::try_from(block)?,
            count: 1,
            lsn: lsn.0,
        })
    };
    let mut page = [0; BLCKSZ];
    let mut cold = Histogram::<u64>::new(3)?;
    for block in 0..span {
        timed(&mut client, request(block)?, &mut page, &mut cold)?;
    }
    first.values.push(cold.value_at_quantile(0.5) as f64 / 1e3);
    for _ in 0..effort.rounds {
        let mut warm = Histogram::<u64>::new(3)?;
        for _ in 0..READS {
            timed(
                &mut client,
                request(random.below(span))?,
                &mut page,
                &mut warm,
            )?;
        }
        p50.values.push(warm.value_at_quantile(0.5) as f64 / 1e3);
        p99.values.push(warm.value_at_quantile(0.99) as f64 / 1e3);
        eprintln!(
            "  materialised: {warm_p50:.1} us",
            warm_p50 = warm.value_at_quantile(0.5) as f64 / 1e3
        );
    }
    report.at_most("materialised page, p50", p50.median(), "us", 100.0);
    report.at_most("materialised page, p99", p99.median(), "us", 500.0);
    report.finding("first read (chain replayed), p50", first.median(), "us");
    report.series.extend([p50, p99, first]);
    drop(client);
    cluster.down()?;
    Ok(report)
}

fn timed(
    client: &mut PageClient,
    request: GetPages,
    page: &mut [u8; BLCKSZ],
    histogram: &mut Histogram<u64>,
) -> Result<()> {
    let begun = Instant::now();
    client.read(request, page)?;
    histogram.record(u64::try_from(begun.elapsed().as_nanos())?)?;
    Ok(())
}
