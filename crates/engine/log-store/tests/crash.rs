//! What survives a killed process, a torn tail, a flipped bit and a full disk.
//!
//! WAL is made here record by record, so that every boundary is known; the process that is killed is
//! this test program itself, run again as a child.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod tape;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use log_store::{LogStore, LogStoreOptions, OpenError, StoreError};
use pg_types::{Lsn, PgMajor, TimelineId};

use tape::{SIZE, Tape, begin, seeded, size, write};

const CHILD: &str = "STRANDLINE_TEST_APPEND_FOREVER";
const LIMITED: &str = "STRANDLINE_TEST_FILE_LIMIT";

fn open(dir: &Path) -> Result<LogStore, OpenError> {
    open_quorum(dir, 1)
}

fn open_quorum(dir: &Path, quorum: usize) -> Result<LogStore, OpenError> {
    let options = LogStoreOptions {
        name: "store".to_owned(),
        dir: dir.join("store"),
        quorum,
        peers: Vec::new(),
    };
    LogStore::open(options).map(|(store, _)| store)
}

/// Not a test of its own: what the killed child does.
#[test]
fn child_appends_forever() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let dir = Path::new(&dir);
    let store = open(dir).unwrap();
    let status = store.status();
    let mut tape = Tape {
        at: status.record_end,
        prev: status.last_record,
        timeline: TimelineId(1),
    };
    for n in 0.. {
        let flushed = write(&store, &mut tape, 10 + n * 7919 % 30_000).unwrap();
        println!("durable {}", flushed.0);
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let root = tempfile::tempdir().unwrap();
    seeded(root.path());
    let mut acknowledged = Lsn(0);
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_appends_forever", "--exact", "--nocapture"])
            .env(CHILD, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < 20 + round * 7 {
            let line = lines.next().unwrap().unwrap();
            if let Some(lsn) = line.strip_prefix("durable ") {
                acknowledged = Lsn(lsn.parse().unwrap());
                seen += 1;
            }
        }
        child.kill().unwrap();
        // What it said before it died counts too.
        for line in lines.map_while(Result::ok) {
            if let Some(lsn) = line
                .strip_prefix("durable ")
                .and_then(|lsn| lsn.parse().ok())
            {
                acknowledged = Lsn(lsn);
            }
        }
        child.wait().unwrap();
        let store = open(root.path()).unwrap();
        let status = store.status();
        assert!(
            status.record_end >= acknowledged,
            "{status:?} but {acknowledged} was durable"
        );
        assert_eq!(status.flushed, status.record_end);
        let mut stream = pg_wal::WalStream::scan_from_page(Lsn(SIZE), PgMajor::V15, size());
        let mut from = Lsn(SIZE);
        while from < status.flushed {
            let (_, bytes) = store.read_wal(from, 1 << 20).unwrap();
            stream.push(from, &bytes).unwrap();
            from = from.advance(bytes.len() as u64);
            while stream.next_record().unwrap().is_some() {}
        }
        assert_eq!(stream.record_end(), status.record_end);
    }
    assert!(
        acknowledged.0 > 2 * SIZE,
        "more than one segment was written"
    );
}

#[test]
fn two_processes_cannot_have_one_directory() {
    let root = tempfile::tempdir().unwrap();
    seeded(root.path());
    let _store = open(root.path()).unwrap();
    let error = open(root.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(
        error.to_string().contains("another log store process uses"),
        "{error}"
    );
}

#[test]
fn a_torn_tail_is_cut_off_and_damage_below_the_watermark_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut tape = seeded(root.path());
    let store = open(root.path()).unwrap();
    for len in [500, 9000, 20] {
        write(&store, &mut tape, len).unwrap();
    }
    let end = tape.at;
    drop(store);
    let segment = root
        .path()
        .join("store")
        .join(size().file_name(TimelineId(1), 1));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&segment)
        .unwrap();

    // A record that was being written when the machine died: its end never came.
    let torn = tape.record(3000);
    file.write_all_at(&torn[..2000], size().offset_of(end))
        .unwrap();
    let options = LogStoreOptions {
        name: "store".to_owned(),
        dir: root.path().join("store"),
        quorum: 1,
        peers: Vec::new(),
    };
    let (store, reported) = LogStore::open(options).unwrap();
    assert_eq!(store.status().flushed, end);
    let reported = reported.expect("the torn tail is reported");
    assert_eq!(reported.end, end);
    let mut tail = vec![1; 4000];
    file.read_exact_at(&mut tail, size().offset_of(end))
        .unwrap();
    assert!(tail.iter().all(|byte| *byte == 0), "it was zeroed");
    drop(store);

    // The same record written whole, but not noted as durable: kept.
    file.write_all_at(&torn, size().offset_of(end)).unwrap();
    let store = open(root.path()).unwrap();
    assert_eq!(store.status().flushed, tape.at);
    drop(store);

    // One bit of durable WAL.
    let victim = size().offset_of(end) + 1000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, victim).unwrap();
    file.write_all_at(&[byte[0] ^ 4], victim).unwrap();
    let error = open(root.path()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{text}");
    for part in [
        segment.to_str().unwrap(),
        &end.to_string(),
        "hint: put the file of the same name",
        "checksum",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    file.write_all_at(&byte, victim).unwrap();
    assert_eq!(open(root.path()).unwrap().status().flushed, tape.at);

    // The state file.
    let state = root.path().join("store/state");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("77", "78")).unwrap();
    assert!(matches!(open(root.path()), Err(OpenError::BadState { .. })));
}

fn checkpoint(tape: &mut Tape, timeline: u32) -> Vec<u8> {
    tape.timeline = TimelineId(timeline);
    tape.record(88)
}

#[test]
fn a_new_timeline_fences_the_old_and_cuts_its_tail() {
    let root = tempfile::tempdir().unwrap();
    let mut tape = seeded(root.path());
    let store = open(root.path()).unwrap();
    write(&store, &mut tape, 4000).unwrap();
    let switch = tape.at;
    let (at, prev) = (tape.at, tape.prev);
    write(&store, &mut tape, 700).unwrap();
    let beyond = tape.at;

    let refused = store
        .begin_timeline(TimelineId(3), TimelineId(1), switch, "", &[])
        .unwrap_err();
    assert!(
        matches!(refused, StoreError::BadTimeline { .. }),
        "{refused}"
    );
    store.promise(TimelineId(3)).unwrap();
    assert!(matches!(
        store.promise(TimelineId(2)),
        Err(StoreError::Fenced(_))
    ));
    let late = store.write_wal(TimelineId(1), TimelineId(1), beyond, "", &tape.record(5));
    assert!(matches!(late, Err(StoreError::Fenced(_))));

    let history = format!("1\t{switch}\ttest\n");
    let mut tape = Tape {
        at,
        prev,
        timeline: TimelineId(3),
    };
    let wal = checkpoint(&mut tape, 3);
    let empty = store
        .begin_timeline(TimelineId(3), TimelineId(1), switch, &history, &[])
        .unwrap();
    assert_eq!((empty.timeline, empty.record_end), (TimelineId(3), switch));
    let again = || store.begin_timeline(TimelineId(3), TimelineId(1), switch, &history, &wal);
    let status = again().unwrap();
    assert_eq!(
        (status.timeline, status.record_end),
        (TimelineId(3), tape.at)
    );
    assert_eq!(again().unwrap(), status, "doing it again changes nothing");
    drop(store);

    let store = open(root.path()).unwrap();
    let again = store.status();
    assert_eq!((again.timeline, again.flushed), (TimelineId(3), tape.at));
    assert_eq!(again.promised, TimelineId(3));
    assert_eq!(again.history_text, history);
    write(&store, &mut tape, 50).unwrap();
    // Both files are there, and the new one begins as the old one does.
    let read = |timeline| {
        let name = size().file_name(TimelineId(timeline), 1);
        std::fs::read(root.path().join("store").join(name)).unwrap()
    };
    let same = size().offset_of(switch) as usize;
    assert!(read(1)[..same] == read(3)[..same]);
}

#[test]
fn a_laggard_learns_the_switch_and_an_orphan_goes_back() {
    let (ahead_dir, behind_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut tape = seeded(ahead_dir.path());
    let mut other = seeded(behind_dir.path());
    let (ahead, behind) = (
        open(ahead_dir.path()).unwrap(),
        open(behind_dir.path()).unwrap(),
    );
    write(&ahead, &mut tape, 4000).unwrap();
    let switch = tape.at;
    ahead.promise(TimelineId(4)).unwrap();
    let history = format!("1\t{switch}\tchosen\n");
    let wal = checkpoint(&mut tape, 4);
    ahead
        .begin_timeline(TimelineId(4), TimelineId(1), switch, &history, &wal)
        .unwrap();

    // The other store began timeline 2 alone, earlier.
    let orphan_at = other.at;
    behind.promise(TimelineId(2)).unwrap();
    let wal = checkpoint(&mut other, 2);
    let text = format!("1\t{orphan_at}\torphan\n");
    behind
        .begin_timeline(TimelineId(2), TimelineId(1), orphan_at, &text, &wal)
        .unwrap();
    assert_eq!(behind.status().timeline, TimelineId(2));

    ahead.promise(TimelineId(5)).unwrap();
    behind.promise(TimelineId(5)).unwrap();
    let end = ahead.status().record_end;
    let gap = behind.write_wal(TimelineId(5), TimelineId(4), switch, &history, &[1; 10]);
    assert!(matches!(gap, Err(StoreError::Gap { .. })), "{gap:?}");
    let from = behind.status().flushed;
    assert_eq!(from, orphan_at, "the orphan was cut off");
    let (_, bytes) = ahead.read_wal(from, 1 << 20).unwrap();
    let status = behind
        .write_wal(TimelineId(5), TimelineId(4), from, &history, &bytes)
        .unwrap();
    assert_eq!((status.timeline, status.record_end), (TimelineId(4), end));
    assert_eq!(status.last_record, ahead.status().last_record);
    drop(behind);
    let behind = open(behind_dir.path()).unwrap();
    assert_eq!(behind.status().history, ahead.status().history);
    let read = |store: &LogStore| store.read_wal(Lsn(SIZE), 1 << 20).unwrap().1;
    assert!(read(&ahead) == read(&behind), "both have the same bytes");
}

#[test]
fn the_quorum_needs_peers_and_ends_at_whole_records() {
    let root = tempfile::tempdir().unwrap();
    let mut tape = seeded(root.path());
    let store = open_quorum(root.path(), 2).unwrap();
    assert_eq!(store.status().quorum, Lsn(0));
    let first = write(&store, &mut tape, 300).unwrap();
    let second = write(&store, &mut tape, 300).unwrap();
    store.note_peer("other", TimelineId(1), Lsn::MAX);
    assert_eq!(
        store.status().quorum,
        Lsn(0),
        "copied under a promise: another start may overrule it"
    );
    let timeline = begin(&store, tape.at, &[]);
    assert_eq!(
        store.status().quorum,
        Lsn(0),
        "the other is on the timeline before"
    );
    store.note_peer("other", timeline, first.advance(50));
    assert_eq!(store.status().quorum, first);
    store.note_peer("other", timeline, Lsn(0));
    assert_eq!(
        store.status().quorum,
        first,
        "what was durable stays durable"
    );
    store.note_peer("other", timeline, Lsn::MAX);
    assert_eq!(store.status().quorum, second);
    store.promise(timeline.next()).unwrap();
    drop(store);
    let store = open(root.path()).unwrap();
    assert_eq!(
        store.status().quorum,
        Lsn(0),
        "promised and not begun: not even a lone store counts its own"
    );
}

/// Not a test of its own: appends under a limit on file sizes until it must stop.
#[test]
fn child_runs_out_of_space() {
    let Some(dir) = std::env::var_os(LIMITED) else {
        return;
    };
    let store = open(Path::new(&dir)).unwrap();
    let status = store.status();
    let mut tape = Tape {
        at: status.record_end,
        prev: status.last_record,
        timeline: TimelineId(1),
    };
    let mut acknowledged = status.flushed;
    let error = loop {
        match write(&store, &mut tape, 20_000) {
            Ok(flushed) => acknowledged = flushed,
            Err(error) => break error,
        }
    };
    println!("durable {}", acknowledged.0);
    println!("stopped {error}");
    assert!(matches!(error, StoreError::Io { .. }));
    let again = write(&store, &mut tape, 10).unwrap_err();
    assert!(matches!(again, StoreError::Poisoned { .. }), "{again}");
    assert_eq!(store.failure(), Some(error.to_string()));
}

#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    seeded(root.path());
    // A tmpfs needs privileges that not every machine gives; a limit on the size of files fails the
    // same write in the same place. The preallocated segments must not fit: 512 KiB of 1 MiB.
    let script =
        "trap '' XFSZ; ulimit -f 512; exec \"$0\" child_runs_out_of_space --exact --nocapture";
    let output = Command::new("bash")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(LIMITED, root.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let durable = text
        .lines()
        .find_map(|line| line.split("durable ").nth(1))
        .unwrap();
    assert!(text.contains("File too large"), "{text}");
    let store = open(root.path()).unwrap();
    assert!(store.status().flushed >= Lsn(durable.parse().unwrap()));
    let status = store.status();
    let mut tape = Tape {
        at: status.record_end,
        prev: status.last_record,
        timeline: TimelineId(1),
    };
    write(&store, &mut tape, 2_000_000).unwrap();
    assert_eq!(
        store.status().record_end,
        tape.at,
        "with space again it goes on"
    );
}
