//! Decodes the WAL of stock servers and compares it with `pg_waldump` and with their data files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pg_types::{BLCKSZ, BlockNumber, Lsn, PgMajor, SegmentSize, TimelineId, XLOG_BLCKSZ};
use pg_wal::page_header::BKP_REMOVABLE;
use pg_wal::records::xact::XactRecord;
use pg_wal::records::xlog::XlogRecord;
use pg_wal::records::{
    clog, commit_ts, dbase, multixact, relmap, replorigin, smgr, standby, tblspc,
};
use pg_wal::{
    MiniRecord, Record, RmgrId, StreamError, Target, WalGeometry, WalPageHeader, WalStream,
    encode_record, place_record,
};
use testkit::{PgBinaries, StockServer};

const SEGMENT: u64 = 1 << 20;

/// One index for each way to compress an image, built over a table that nothing reads afterwards:
/// its pages on disk are the images.
const METHODS: [&str; 4] = ["off", "pglz", "lz4", "zstd"];

fn start(major: u32, dir: &Path) -> Result<StockServer> {
    let settings = [
        ("wal_level", "logical"),
        ("wal_keep_size", "2GB"),
        ("max_wal_size", "32MB"),
        ("min_wal_size", "2MB"),
        ("max_prepared_transactions", "10"),
        ("track_commit_timestamp", "on"),
        ("allow_in_place_tablespaces", "on"),
        ("autovacuum", "off"),
        ("shared_buffers", "8MB"),
    ];
    let binaries = PgBinaries::find(major)?;
    let mut server = StockServer::init(binaries, dir, &["--wal-segsize=1"], &settings)?;
    server.start()?;
    Ok(server)
}

/// Exercises every resource manager of a stock server; returns the files of the indexes.
fn load(server: &StockServer, methods: &[&str]) -> Result<Vec<String>> {
    let sql = |text: &str| server.psql("postgres", text);
    ensure!(
        server
            .client("pgbench")?
            .args(["-i", "-q", "-s", "2", "postgres"])
            .output()?
            .status
            .success()
    );
    sql("SET wal_compression = on; CHECKPOINT")?;
    let script = server.socket_dir().join("share.sql");
    fs::write(
        &script,
        "\\set aid random(1, 20)\nBEGIN;\nSAVEPOINT a;\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid FOR SHARE;\n\
         RELEASE a;\nSAVEPOINT b;\nUPDATE pgbench_tellers SET tbalance = 1 WHERE tid = 1;\nROLLBACK TO b;\nCOMMIT;\n",
    )?;
    let mut pgbench = server.client("pgbench")?;
    pgbench.args(["-c", "4", "-t", "300", "-n", "-b", "tpcb-like@3", "-f"]);
    let output = pgbench
        .arg(format!("{}@1", script.display()))
        .arg("postgres")
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    for statement in [
        "CREATE TABLE gone (a int PRIMARY KEY, b text); INSERT INTO gone SELECT g, repeat('x', g) FROM generate_series(1, 400) g",
        "TRUNCATE gone; DROP TABLE gone",
        "CREATE UNLOGGED TABLE u (a serial)",
        "CREATE TABLE docs AS SELECT g AS id, point(g, g) AS p, to_tsvector('a' || g % 7 || ' b' || g % 11) AS t FROM generate_series(1, 3000) g",
        "CREATE INDEX ON docs USING gin (t); CREATE INDEX ON docs USING gist (p); CREATE INDEX ON docs USING spgist (p)",
        "CREATE INDEX ON docs USING hash (id); CREATE INDEX ON docs USING brin (id)",
        "INSERT INTO docs SELECT id + 3000, p, t FROM docs; DELETE FROM docs WHERE id % 3 = 0",
        "VACUUM (FREEZE) docs",
        "VACUUM FULL pgbench_branches",
        "VACUUM FULL pg_class",
        "BEGIN; CREATE TABLE two (a int); SAVEPOINT s; INSERT INTO two VALUES (1); RELEASE s; PREPARE TRANSACTION 'first'",
        "COMMIT PREPARED 'first'",
        "BEGIN; INSERT INTO two VALUES (2); PREPARE TRANSACTION 'second'",
        "ROLLBACK PREPARED 'second'",
        "CREATE DATABASE logged STRATEGY wal_log",
        "CREATE DATABASE copied STRATEGY file_copy",
        "DROP DATABASE copied",
        "CREATE TABLESPACE extra LOCATION ''",
        "CREATE TABLE there (a int) TABLESPACE extra; DROP TABLE there",
        "DROP TABLESPACE extra",
        "SELECT pg_replication_origin_create('far'); SELECT pg_replication_origin_advance('far', '0/1234')",
        "SELECT pg_replication_origin_drop('far')",
        // Longer than three segments.
        "SELECT pg_logical_emit_message(true, 'm', repeat('x', 3 * 1024 * 1024 + 77))",
        "SELECT pg_create_restore_point('here')",
        "SELECT pg_switch_wal()",
        "SET wal_consistency_checking = 'all'; UPDATE pgbench_tellers SET tbalance = 7; CHECKPOINT",
    ] {
        sql(statement)?;
    }
    sql(
        "CREATE TABLE still AS SELECT g AS id, md5(g::text) AS v, 'a' AS s FROM generate_series(1, 4000) g",
    )?;
    let mut files = Vec::new();
    for method in methods {
        sql(&format!(
            "SET wal_compression = '{method}'; CREATE INDEX still_{method} ON still (s, v)"
        ))?;
        files.push(sql(&format!(
            "SELECT pg_relation_filepath('still_{method}')"
        ))?);
    }
    Ok(files)
}

/// What is compared with `pg_waldump`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    lsn: Lsn,
    prev: Lsn,
    rmgr: String,
    len: u32,
}

/// Everything that is learnt from one pass over the WAL of a stopped server.
#[derive(Default)]
struct Seen {
    records: Vec<Listed>,
    checkpoints: Vec<Lsn>,
    prepared_gids: Vec<String>,
    rmgrs: BTreeMap<u8, usize>,
    /// Last image of each block, by (database, relation, block).
    images: BTreeMap<(u32, u32, BlockNumber), Box<[u8; BLCKSZ]>>,
    compressed: usize,
}

/// Reads segment after segment in odd pieces until the WAL ends.
fn decode_all(pg_wal: &Path, major: PgMajor) -> Result<Seen> {
    let size = SegmentSize::new(SEGMENT)?;
    let mut numbers: Vec<u64> = Vec::new();
    for entry in fs::read_dir(pg_wal)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        numbers.extend(size.parse_file_name(&name).map(|(_, number)| number));
    }
    numbers.sort_unstable();
    let first = *numbers.first().context("no WAL")?;
    let mut stream = WalStream::scan_from_page(size.start_of(first), major, size);
    let mut seen = Seen::default();
    let mut log = Vec::new();
    for number in numbers {
        let bytes = fs::read(pg_wal.join(size.file_name(TimelineId(1), number)))?;
        ensure!(bytes.len() as u64 == SEGMENT);
        log.extend_from_slice(&bytes);
        for (index, piece) in bytes.chunks(7001).enumerate() {
            let at = size.start_of(number).advance(index as u64 * 7001);
            stream.push(at, piece)?;
            loop {
                let before = stream.record_end();
                let had_record = stream.last_record().is_valid();
                match stream.next_record() {
                    Ok(None) => break,
                    Ok(Some(found)) => {
                        let (start, end) = (found.start, found.end);
                        let record = Record::decode(found.bytes, major)
                            .with_context(|| format!("record at {start}"))?;
                        look_at(&record, start, &mut seen)
                            .with_context(|| format!("record at {start}"))?;
                        if had_record {
                            check_placing(
                                before,
                                start,
                                end,
                                found.bytes,
                                &log,
                                size.start_of(first),
                                major,
                            )?;
                        }
                        check_minis(&record)?;
                        check_encoding(&record, found.bytes)
                            .with_context(|| format!("record at {start}"))?;
                    }
                    Err(StreamError::EndOfWal { .. }) => return Ok(seen),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(seen)
}

fn look_at(record: &Record<'_>, start: Lsn, seen: &mut Seen) -> Result<()> {
    let header = &record.header;
    *seen.rmgrs.entry(header.rmid.0).or_default() += 1;
    seen.records.push(Listed {
        lsn: start,
        prev: header.prev,
        rmgr: header.rmid.name().unwrap_or("?").to_owned(),
        len: header.tot_len,
    });
    match header.rmid {
        RmgrId::XLOG => {
            if let XlogRecord::CheckpointShutdown(_) | XlogRecord::CheckpointOnline(_) =
                XlogRecord::decode(record)?
            {
                seen.checkpoints.push(start);
            }
        }
        RmgrId::XACT => match XactRecord::decode(record)? {
            XactRecord::Prepare(prepare) => {
                seen.prepared_gids
                    .push(format!("prepare {}", String::from_utf8_lossy(prepare.gid)));
            }
            XactRecord::Commit(end) if end.prepared => {
                ensure!(end.xid != 0 && end.xid != header.xid);
                seen.prepared_gids
                    .push(format!("commit {}", String::from_utf8_lossy(end.gid)));
            }
            XactRecord::Abort(end) if end.prepared => {
                seen.prepared_gids
                    .push(format!("abort {}", String::from_utf8_lossy(end.gid)));
            }
            _ => {}
        },
        RmgrId::SMGR => drop(smgr::SmgrRecord::decode(record)?),
        RmgrId::CLOG => drop(clog::ClogRecord::decode(record)?),
        RmgrId::COMMIT_TS => drop(commit_ts::CommitTsRecord::decode(record)?),
        RmgrId::DBASE => drop(dbase::DbaseRecord::decode(record)?),
        RmgrId::TBLSPC => drop(tblspc::TblspcRecord::decode(record)?),
        RmgrId::MULTIXACT => drop(multixact::MultiXactRecord::decode(record)?),
        RmgrId::RELMAP => drop(relmap::RelmapUpdate::decode(record)?),
        RmgrId::STANDBY => drop(standby::StandbyRecord::decode(record)?),
        RmgrId::REPLORIGIN => drop(replorigin::ReplOriginRecord::decode(record)?),
        _ => {}
    }
    for block in &record.blocks {
        let Some(image) = &block.image else { continue };
        seen.compressed += usize::from(image.compression.is_some());
        let mut page = Box::new([0xAA; BLCKSZ]);
        image.restore(&mut page)?;
        seen.images
            .insert((block.rel.db, block.rel.rel, block.block), page);
    }
    Ok(())
}

/// Laying the record where the one before it ends gives the very bytes in the file.
fn check_placing(
    before: Lsn,
    start: Lsn,
    end: Lsn,
    bytes: &[u8],
    log: &[u8],
    log_start: Lsn,
    major: PgMajor,
) -> Result<()> {
    let header = WalPageHeader::decode(log).context("first page header")?;
    let geometry = WalGeometry {
        major,
        system_identifier: header
            .long
            .context("first page is not long")?
            .system_identifier,
        segment_size: SegmentSize::new(SEGMENT)?,
        timeline: header.timeline,
    };
    let mut placed = place_record(before, bytes, &geometry);
    ensure!((placed.start, placed.from) == (start, before));
    let is_switch = end.since(placed.end) > 0;
    ensure!(
        placed.end == end || is_switch && end.0.is_multiple_of(SEGMENT),
        "end of {start}"
    );
    // Servers set a flag in the headers that says nothing about the record.
    let mut page = before.0.next_multiple_of(XLOG_BLCKSZ);
    while page < placed.end.0 {
        placed.bytes[(page - before.0) as usize + 2] |= BKP_REMOVABLE as u8;
        page += XLOG_BLCKSZ;
    }
    let from = before.since(log_start) as usize;
    let file = &log[from..log.len().min(from + placed.bytes.len())];
    // The padding may not have been read yet.
    ensure!(
        placed.bytes.starts_with(file) && file.len() + 8 > placed.bytes.len(),
        "bytes of {start}"
    );
    Ok(())
}

/// A record of main data alone is encoded to the very bytes the server wrote.
fn check_encoding(record: &Record<'_>, bytes: &[u8]) -> Result<()> {
    let main_alone =
        record.blocks.is_empty() && record.origin.is_none() && record.toplevel_xid.is_none();
    if main_alone {
        let it = &record.header;
        ensure!(encode_record(it.rmid, it.info, it.xid, it.prev, record.main) == bytes);
    }
    Ok(())
}

/// The mini-record of each block holds what the record says of that block.
fn check_minis(record: &Record<'_>) -> Result<()> {
    let mut bytes = Vec::new();
    for block in &record.blocks {
        bytes.clear();
        MiniRecord::encode_from(
            record,
            Target::Block(block.id),
            false,
            true,
            true,
            &mut bytes,
        );
        let mini = MiniRecord::decode(&bytes)?;
        let slim = mini.decode_record(record.major)?;
        ensure!(slim.main == record.main && slim.blocks.len() == record.blocks.len());
        ensure!(slim.block(block.id) == Some(block));
    }
    Ok(())
}

/// `rmgr: Heap  len (rec/tot): 54/ 54, tx: 7, lsn: 0/0100, prev 0/00D8, desc: …`
fn parse_waldump(text: &str) -> Result<Vec<Listed>> {
    let field = |line: &str, name: &str, stop: char| -> Option<String> {
        let rest = &line[line.find(name)? + name.len()..];
        Some(rest[..rest.find(stop)?].trim().to_owned())
    };
    text.lines()
        .map(|line| {
            let parse = || -> Option<Listed> {
                let lengths = field(line, "(rec/tot):", ',')?;
                Some(Listed {
                    lsn: field(line, "lsn:", ',')?.parse().ok()?,
                    prev: field(line, ", prev ", ',')?.parse().ok()?,
                    rmgr: field(line, "rmgr:", '(')?
                        .trim_end_matches("len")
                        .trim()
                        .to_owned(),
                    len: lengths.split('/').nth(1)?.trim().parse().ok()?,
                })
            };
            parse().with_context(|| format!("unexpected line of pg_waldump: {line}"))
        })
        .collect()
}

fn compare_with_disk(seen: &Seen, data_dir: &Path, files: &[String]) -> Result<()> {
    for file in files {
        let mut parts = file.rsplit('/').map(str::parse::<u32>);
        let rel = parts.next().context("no file")??;
        let db = parts.next().context("no database")??;
        let mut disk = fs::read(data_dir.join(file))?;
        ensure!(
            disk.len() > 10 * BLCKSZ,
            "{file} is too small to prove anything"
        );
        for (block, page) in disk.chunks_mut(BLCKSZ).enumerate() {
            // A hole is left out of the image whatever it holds: builds leave old line pointers.
            let lower = usize::from(u16::from_le_bytes([page[12], page[13]]));
            let upper = usize::from(u16::from_le_bytes([page[14], page[15]]));
            page[lower..upper].fill(0);
            let image = seen
                .images
                .get(&(db, rel, block as BlockNumber))
                .with_context(|| format!("no image of {file} block {block}"))?;
            // The image was taken before the LSN was stamped and the checksum set.
            ensure!(image[10..] == page[10..], "{file} block {block} differs");
        }
    }
    Ok(())
}

fn control_checkpoint(data_dir: &Path) -> Result<Lsn> {
    let control = fs::read(data_dir.join("global/pg_control"))?;
    Ok(Lsn(u64::from_le_bytes(control[32..40].try_into()?)))
}

#[test]
fn every_record_of_a_stock_server_is_split_and_decoded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = start(15, dir.path())?;
    let files = load(&server, &METHODS)?;
    server.stop()?;
    let pg_wal = server.data_dir().join("pg_wal");
    let seen = decode_all(&pg_wal, PgMajor::V15)?;

    // It ends with an error at the end of the WAL; what it printed before counts.
    let mut waldump = server.command("pg_waldump")?;
    let first = seen.records.first().context("no records")?.lsn.to_string();
    let output = waldump
        .arg("-p")
        .arg(&pg_wal)
        .args(["-s", &first])
        .output()?;
    let listed = parse_waldump(&String::from_utf8_lossy(&output.stdout))?;
    ensure!(
        listed.len() > 20_000,
        "pg_waldump lists only {} records",
        listed.len()
    );
    for (ours, theirs) in seen.records.iter().zip(&listed) {
        ensure!(ours == theirs, "{ours:?} is {theirs:?} for pg_waldump");
    }
    ensure!(
        seen.records.len() == listed.len(),
        "{} of {} records",
        seen.records.len(),
        listed.len()
    );

    ensure!(seen.checkpoints.last() == Some(&control_checkpoint(&server.data_dir())?));
    ensure!(
        seen.prepared_gids
            == [
                "prepare first",
                "commit first",
                "prepare second",
                "abort second"
            ],
        "{:?}",
        seen.prepared_gids
    );
    let missing: Vec<u8> = (0..=21)
        .filter(|rmgr| !seen.rmgrs.contains_key(rmgr))
        .collect();
    // No extension that writes generic records is loaded, and too few transactions ran to begin a
    // page of commit timestamps or to truncate one.
    ensure!(
        missing.iter().all(|rmgr| [3, 18, 20].contains(rmgr)),
        "no records of {missing:?}"
    );
    ensure!(
        seen.compressed > 30,
        "only {} compressed images",
        seen.compressed
    );
    compare_with_disk(&seen, &server.data_dir(), &files)
}

/// Runs where `STRANDLINE_PG17` names a directory of PostgreSQL 17.
#[test]
fn wal_of_17_decodes_to_its_last_checkpoint() -> Result<()> {
    if PgBinaries::configured(17).is_none() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut server = start(17, dir.path())?;
    let files = load(&server, &["off", "pglz"])?;
    server.stop()?;
    let seen = decode_all(&server.data_dir().join("pg_wal"), PgMajor::V17)?;
    ensure!(seen.checkpoints.last() == Some(&control_checkpoint(&server.data_dir())?));
    ensure!(
        seen.records.len() > 20_000,
        "only {} records",
        seen.records.len()
    );
    compare_with_disk(&seen, &server.data_dir(), &files)
}
