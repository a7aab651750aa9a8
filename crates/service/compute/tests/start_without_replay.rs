//! A stock server starts on a data directory that was built from a skeleton, with the checkpoint
//! record at every kind of place in the log: within a page, so that it crosses into the next one, at
//! a page's first byte, across segments, at a segment's first byte.
//!
//! The skeleton describes a cleanly stopped stock cluster; a page server of a few lines serves its
//! files. Records that change nothing are appended to reach the place wanted. The sparse relation
//! files are then filled with the originals, so no shim is needed: what is judged is everything else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cluster_state::{DatabaseDir, RelationMap, RelationSize, Skeleton, SlruRange};
use compute::checkpoint::{TimelineSwitch, history_text, start_checkpoint};
use compute::datadir::{BuiltDirectory, Incarnation, build};
use compute::leftover::Ended;
use pg_page::ControlFile;
use pg_types::{
    BLCKSZ, ForkNumber, Lsn, RelFileLocator, RelFork, SegmentSize, Slru, TimelineId, XLOG_BLCKSZ,
};
use pg_wal::{RmgrId, WalGeometry, WalStream, encode_record, place_record};
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, PageReply, STATUS_PAGE, STATUS_ZERO,
};
use testkit::{OrdinaryUser, PgBinaries, StockServer};

const SEGMENT: u64 = 1 << 20;

/// The log of the stopped cluster, to be continued.
struct Log {
    geometry: WalGeometry,
    end: Lsn,
    last_record: Lsn,
    /// From `from` on.
    from: Lsn,
    bytes: Vec<u8>,
}

impl Log {
    fn read(pgdata: &Path, control: &ControlFile) -> Log {
        let size = control.segment_size();
        let timeline = control.checkpoint().timeline;
        let from = size.start_of(size.segment_of(control.checkpoint_lsn()));
        let name = size.file_name(timeline, size.segment_of(from));
        let bytes = fs::read(pgdata.join("pg_wal").join(name)).unwrap();
        let mut stream = WalStream::scan_from_page(from, control.major(), size);
        stream.push(from, &bytes).unwrap();
        while let Ok(Some(_)) = stream.next_record() {}
        let (end, last_record) = (stream.record_end(), stream.last_record());
        assert_eq!(
            last_record,
            control.checkpoint_lsn(),
            "the last record is the shutdown checkpoint"
        );
        let geometry = WalGeometry {
            major: control.major(),
            system_identifier: control.system_identifier(),
            segment_size: size,
            timeline,
        };
        let kept = usize::try_from(end.since(from)).unwrap();
        Log {
            geometry,
            end,
            last_record,
            from,
            bytes: bytes[..kept].to_vec(),
        }
    }

    fn append(&mut self, main: usize) {
        const NOOP: u8 = 0x20;
        let record = encode_record(RmgrId::XLOG, NOOP, 0, self.last_record, &vec![7; main]);
        let placed = place_record(self.end, &record, &self.geometry);
        self.bytes.extend_from_slice(&placed.bytes);
        (self.last_record, self.end) = (placed.start, placed.end);
    }

    /// Appends records that change nothing until the log ends at `target`.
    fn extend_to(&mut self, target: Lsn) {
        assert!(target > self.end);
        while target.since(self.end) > 4 * XLOG_BLCKSZ {
            self.append(8000);
        }
        // Bring it near, then find the length that ends exactly there.
        for main in 0..40_000 {
            let record = encode_record(RmgrId::XLOG, 0x20, 0, self.last_record, &vec![7; main]);
            let placed = place_record(self.end, &record, &self.geometry);
            if placed.end == target {
                self.append(main);
                return;
            }
            if placed.end > target {
                break;
            }
        }
        // No length ends there because a page header is in the way of the last record's alignment.
        panic!("no record ends at {target} after {}", self.end);
    }
}

/// Serves the files of a stopped cluster over the page wire.
fn serve(pgdata: PathBuf, listener: UnixListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let pgdata = pgdata.clone();
            std::thread::spawn(move || serve_one(&pgdata, stream));
        }
    });
}

fn serve_one(pgdata: &Path, mut stream: UnixStream) {
    let mut frame = [0; FRAME_BYTES];
    stream.read_exact(&mut frame).unwrap();
    let hello = Hello::decode(&frame).unwrap();
    let welcome = HelloReply {
        status: STATUS_PAGE,
        payload: 0,
        system_identifier: hello.system_identifier,
    };
    stream.write_all(&welcome.encode()).unwrap();
    while stream.read_exact(&mut frame).is_ok() {
        let get = GetPages::decode(&frame).unwrap();
        for block in get.first_block..get.first_block + u32::from(get.count) {
            let mut page = [0; BLCKSZ];
            let there = read_page(pgdata, &get, block, &mut page);
            let reply = PageReply {
                request_id: get.request_id,
                space: get.space,
                db: get.db,
                rel: get.rel,
                fork: get.fork,
                block,
                status: if there { STATUS_PAGE } else { STATUS_ZERO },
                payload: if there { BLCKSZ as u32 } else { 0 },
                lsn: get.lsn,
            };
            stream.write_all(&reply.encode()).unwrap();
            if there {
                stream.write_all(&page).unwrap();
            }
        }
    }
}

fn read_page(pgdata: &Path, get: &GetPages, block: u32, page: &mut [u8; BLCKSZ]) -> bool {
    let slru = Slru::ALL
        .into_iter()
        .find(|slru| get.space == 0 && *slru as u32 == get.rel);
    let (path, block) = match slru {
        Some(slru) => (
            pgdata
                .join(slru.directory())
                .join(format!("{:04X}", block / 32)),
            block % 32,
        ),
        None => {
            let fork = ForkNumber::try_from(u32::from(get.fork)).unwrap();
            (
                pgdata.join(format!("base/{}/{}{}", get.db, get.rel, fork.suffix())),
                block,
            )
        }
    };
    fs::File::open(path)
        .and_then(|file| file.read_exact_at(page, u64::from(block) * BLCKSZ as u64))
        .is_ok()
}

/// Fork and relation number in a file name such as `1259_vm`; `None` for other files and segments.
fn relation_file(name: &str) -> Option<(u32, ForkNumber)> {
    let (number, suffix) = name.split_at(name.find('_').unwrap_or(name.len()));
    let fork = ForkNumber::ALL
        .into_iter()
        .find(|fork| fork.suffix() == suffix)?;
    Some((number.parse().ok()?, fork))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a storage node would say of the cluster, from its files.
fn skeleton(pgdata: &Path, control: &ControlFile, log: &Log) -> Skeleton {
    let mut skeleton = Skeleton {
        lsn: log.end,
        last_record: log.last_record,
        timeline: log.geometry.timeline,
        major: control.major(),
        segment_size: control.segment_size(),
        control: hex(&control.encode()),
        relations: Vec::new(),
        databases: Vec::new(),
        tablespaces: Vec::new(),
        relation_maps: Vec::new(),
        two_phase: Vec::new(),
        slrus: Vec::new(),
        replication_origins: None,
    };
    let mut directories = vec![(pgdata.join("global"), RelFileLocator::GLOBAL_TABLESPACE, 0)];
    for entry in fs::read_dir(pgdata.join("base")).unwrap().flatten() {
        let Ok(db) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        directories.push((entry.path(), RelFileLocator::DEFAULT_TABLESPACE, db));
        skeleton.databases.push(DatabaseDir {
            spc: RelFileLocator::DEFAULT_TABLESPACE,
            db,
        });
    }
    for (directory, spc, db) in directories {
        let map = fs::read(directory.join("pg_filenode.map")).unwrap();
        skeleton.relation_maps.push(RelationMap {
            spc,
            db,
            bytes: hex(&map),
        });
        let names: Vec<(String, u64)> = fs::read_dir(&directory)
            .unwrap()
            .flatten()
            .map(|entry| {
                let size = entry.metadata().unwrap().len();
                (entry.file_name().to_string_lossy().into_owned(), size)
            })
            .collect();
        for (name, size) in &names {
            let Some((rel, fork)) = relation_file(name) else {
                continue;
            };
            let unlogged = names
                .iter()
                .any(|(other, _)| *other == format!("{rel}_init"));
            if unlogged && fork != ForkNumber::Init {
                continue;
            }
            let locator = RelFileLocator { spc, db, rel };
            let blocks = u32::try_from(size / BLCKSZ as u64).unwrap();
            skeleton.relations.push(RelationSize {
                fork: RelFork { locator, fork },
                blocks,
            });
        }
    }
    for slru in Slru::ALL {
        for entry in fs::read_dir(pgdata.join(slru.directory()))
            .unwrap()
            .flatten()
        {
            let name = entry.file_name();
            let first = u32::from_str_radix(&name.to_string_lossy(), 16).unwrap() * 32;
            let pages = u32::try_from(entry.metadata().unwrap().len() / BLCKSZ as u64).unwrap();
            if pages > 0 {
                skeleton.slrus.push(SlruRange {
                    slru,
                    first,
                    last: first + pages - 1,
                });
            }
        }
    }
    skeleton
}

/// Puts the originals' content into the sparse relation files, as the shim would bit by bit.
fn fill(pgdata: &Path, built: &BuiltDirectory, skeleton: &Skeleton) {
    for relation in &skeleton.relations {
        let RelFileLocator { spc, db, rel } = relation.fork.locator;
        let directory = match spc {
            RelFileLocator::GLOBAL_TABLESPACE => "global".to_owned(),
            _ => format!("base/{db}"),
        };
        let name = format!("{directory}/{rel}{}", relation.fork.fork.suffix());
        let target = built.pgdata.join(&name);
        assert_eq!(
            target.metadata().unwrap().len(),
            u64::from(relation.blocks) * BLCKSZ as u64,
            "size of {name}"
        );
        if relation.fork.fork == ForkNumber::Init {
            assert_eq!(
                fs::read(&target).unwrap(),
                fs::read(pgdata.join(&name)).unwrap(),
                "{name}"
            );
        } else {
            let original = fs::read(pgdata.join(&name)).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .open(&target)
                .unwrap()
                .write_all_at(&original, 0)
                .unwrap();
        }
    }
}

fn give_to(user: &OrdinaryUser, path: &Path) {
    user.own(path).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            give_to(user, &entry.path());
        }
    }
}

/// Starts a stock server on the built directory and asks it for what the original held.
fn starts_and_answers(
    dir: &Path,
    binaries: &PgBinaries,
    built: &BuiltDirectory,
    timeline: TimelineId,
) {
    let user = OrdinaryUser::current().unwrap();
    give_to(&user, dir);
    fs::write(built.pgdata.join("postgresql.conf"), "").unwrap();
    fs::write(built.pgdata.join("pg_hba.conf"), "local all all trust\n").unwrap();
    fs::write(built.pgdata.join("pg_ident.conf"), "").unwrap();
    let log = fs::File::create(dir.join("log")).unwrap();
    let mut server = user
        .command(&binaries.directory().join("postgres"))
        .arg("-D")
        .arg(&built.pgdata)
        .args([
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "restart_after_crash=off",
        ])
        .arg("-c")
        .arg(format!("unix_socket_directories={}", dir.display()))
        .stderr(log)
        .spawn()
        .unwrap();
    let ask = |sql: &str| -> Option<String> {
        let host = dir.to_str().unwrap();
        let mut client =
            pg_client::PgClient::connect(host, 5432, "postgres", "postgres", &[], false).ok()?;
        Some(
            client
                .simple_query(sql)
                .unwrap()
                .value(0)
                .unwrap()
                .to_owned(),
        )
    };
    let begun = std::time::Instant::now();
    let sum = loop {
        if let Some(sum) = ask("SELECT count(*) || ' ' || sum(id) FROM kept") {
            break sum;
        }
        let text = || fs::read_to_string(dir.join("log")).unwrap();
        assert!(
            server.try_wait().unwrap().is_none(),
            "the server ended:\n{}",
            text()
        );
        assert!(
            begun.elapsed().as_secs() < 60,
            "the server does not get ready:\n{}",
            text()
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(sum, "1000 500500");
    assert_eq!(
        ask("SELECT count(*) FROM lost").unwrap(),
        "0",
        "unlogged tables are empty after a crash"
    );
    assert_eq!(
        ask("INSERT INTO lost VALUES (1) RETURNING id").unwrap(),
        "1"
    );
    assert_eq!(
        ask("INSERT INTO kept VALUES (1001) RETURNING id").unwrap(),
        "1001"
    );
    let now = ask("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").unwrap();
    assert_eq!(now, format!("{:08X}", timeline.0));
    assert_eq!(ask("CHECKPOINT; SELECT 1").unwrap(), "1");
    compute::leftover::send_signal(server.id(), libc::SIGINT);
    assert!(server.wait().unwrap().success());
}

/// The places where the log may end, as offsets from a page's or segment's start.
fn places(log: &Log) -> Vec<(&'static str, Lsn)> {
    let page = Lsn((log.end.0 / XLOG_BLCKSZ + 3) * XLOG_BLCKSZ);
    let segment = Lsn((log.end.0 / SEGMENT + 1) * SEGMENT);
    vec![
        ("within a page", page.advance(1000 * 4)),
        ("8 bytes before a page", Lsn(page.0 - 8)),
        ("a header before a page", Lsn(page.0 - 24)),
        ("the record crosses a page", Lsn(page.0 - 64)),
        ("the record just fits a page", Lsn(page.0 - 120)),
        ("a page's first byte", page),
        ("8 bytes before a segment", Lsn(segment.0 - 8)),
        ("the record crosses a segment", Lsn(segment.0 - 64)),
        ("a segment's first byte", segment),
    ]
}

fn every_place(major: u32) {
    let binaries = PgBinaries::find(major).unwrap();
    let dir = tempfile::Builder::new()
        .prefix("strandline-start-")
        .tempdir()
        .unwrap();
    fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut stock = StockServer::init(
        binaries.clone(),
        &dir.path().join("stock"),
        &["--wal-segsize=1"],
        &[],
    )
    .unwrap();
    stock.start().unwrap();
    let host = stock.socket_dir().display().to_string();
    let mut client =
        pg_client::PgClient::connect(&host, stock.port(), "postgres", "postgres", &[], false)
            .unwrap();
    client
        .simple_query(
            "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept SELECT generate_series(1, 1000); \
             CREATE UNLOGGED TABLE lost (id int PRIMARY KEY); INSERT INTO lost SELECT generate_series(1, 10); \
             SELECT pg_switch_wal()",
        )
        .unwrap();
    drop(client);
    stock.stop().unwrap();
    let pgdata = stock.data_dir();
    let control =
        ControlFile::decode(&fs::read(pgdata.join("global/pg_control")).unwrap()).unwrap();
    assert_eq!(control.segment_size(), SegmentSize::new(SEGMENT).unwrap());
    let socket = dir.path().join("pages");
    serve(pgdata.clone(), UnixListener::bind(&socket).unwrap());
    let pages = rpc::Endpoint::Unix(socket);
    let stopped = Log::read(&pgdata, &control);
    for (index, (name, target)) in places(&stopped).into_iter().enumerate() {
        let mut log = Log::read(&pgdata, &control);
        log.extend_to(target);
        let switch = TimelineSwitch {
            at: log.end,
            last_record: log.last_record,
            parent: log.geometry.timeline,
            timeline: TimelineId(7),
        };
        let skeleton = skeleton(&pgdata, &control, &log);
        let checkpoint = start_checkpoint(&control, &switch, 1_800_000_000);
        assert_eq!(checkpoint.placed.from, target, "{name}");
        let segment_start = Lsn(target.0 / SEGMENT * SEGMENT);
        let wal_from = segment_start.max(log.from);
        let known = usize::try_from(wal_from.since(log.from)).unwrap();
        let home = dir.path().join(format!("place-{index}"));
        fs::create_dir(&home).unwrap();
        let incarnation = Incarnation {
            skeleton: &skeleton,
            switch,
            checkpoint: &checkpoint,
            history: &history_text("", &switch),
            wal_from,
            wal: &log.bytes[known..],
            pages: &pages,
            cache_blocks: 0,
            read_timeout_ms: 0,
        };
        let built = build(&home.join("compute"), &incarnation, &Ended::All).unwrap();
        fill(&pgdata, &built, &skeleton);
        eprintln!("PostgreSQL {major}: {name}, at {target}");
        starts_and_answers(&home, &binaries, &built, switch.timeline);
        fs::remove_dir_all(&home).unwrap();
    }
}

#[test]
fn postgresql_15_starts_wherever_the_log_ends() {
    every_place(15);
}

#[test]
fn postgresql_17_starts_wherever_the_log_ends() {
    if PgBinaries::configured(17).is_none() {
        eprintln!("STRANDLINE_PG17 is not set: only 15 is judged here");
        return;
    }
    every_place(17);
}
