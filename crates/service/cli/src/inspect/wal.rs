//! `strandline inspect wal`: the records of segment files, in the manner of `pg_waldump`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId, XLOG_BLCKSZ};
use pg_wal::{Record, StreamError, StreamedRecord, WalPageHeader, WalStream};
use serde_json::{Value, json};

use crate::error::{Failure, Outcome};

/// A segment file on the way to be read.
struct Segment {
    number: u64,
    path: PathBuf,
}

/// Prints the records of the segment `path`, or of the newest timeline's segments in the directory
/// `path`, from `start` on.
///
/// # Errors
/// [`Failure`] when there is no WAL, or it is damaged before its end.
pub fn print(path: &Path, start: Option<Lsn>, limit: Option<u64>, as_json: bool) -> Outcome<()> {
    let files = segment_files(path)?;
    let first = files.first().ok_or_else(|| {
        Failure::new(format!("{} holds no WAL segment", path.display()))
            .hint("name a segment file, a log store's directory or a pg_wal directory")
    })?;
    let (major, size) = geometry(first)?;
    let segments = chosen_segments(&files, size, start)?;
    let Some(begin) = segments.first() else {
        return Err(Failure::new(format!(
            "there is no segment at {}",
            start.unwrap_or_default()
        )));
    };
    let from = start.unwrap_or_else(|| size.start_of(begin.number));
    let page = Lsn(from.0 - from.0 % XLOG_BLCKSZ).max(size.start_of(begin.number));
    let mut stream = WalStream::scan_from_page(page, major, size);
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        major,
        from,
        left: limit.unwrap_or(u64::MAX),
        as_json,
    };
    for (index, segment) in segments.iter().enumerate() {
        let at = size.start_of(segment.number).max(page);
        let mut file =
            File::open(&segment.path).map_err(|error| io_failure(&segment.path, &error))?;
        io::copy(&mut (&mut file).take(size.offset_of(at)), &mut io::sink())
            .map_err(|error| io_failure(&segment.path, &error))?;
        if feed(&mut stream, &mut printer, &mut file, at, &segment.path)? {
            return printer.finish();
        }
        let gap = segments
            .get(index + 1)
            .is_some_and(|next| next.number != segment.number + 1);
        if gap {
            eprintln!(
                "strandline: the segment after {} is missing",
                segment.path.display()
            );
            break;
        }
    }
    printer.finish()
}

/// Feeds a file in pieces; true when nothing more is to be printed.
fn feed(
    stream: &mut WalStream,
    printer: &mut Printer<'_>,
    file: &mut File,
    mut at: Lsn,
    path: &Path,
) -> Outcome<bool> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file
            .read(&mut buffer)
            .map_err(|error| io_failure(path, &error))?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(false);
        };
        stream
            .push(at, bytes)
            .map_err(|error| Failure::from(error).during(path.display()))?;
        at = at.advance(read as u64);
        loop {
            match stream.next_record() {
                Ok(Some(record)) => {
                    if printer.record(&record)? {
                        return Ok(true);
                    }
                }
                Ok(None) => break,
                Err(error @ StreamError::EndOfWal { .. }) => {
                    printer.out.flush()?;
                    eprintln!("end of WAL: {error}");
                    return Ok(true);
                }
                Err(error) => return Err(Failure::from(error).during(path.display())),
            }
        }
    }
}

fn io_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// Files whose names are those of segments, in order of name.
fn segment_files(path: &Path) -> Outcome<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for directory in [path.to_owned(), path.join("wal"), path.join("pg_wal")] {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == path => return Err(io_failure(path, &error)),
            Err(_) => continue,
        };
        found.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| is_segment(path)),
        );
    }
    found.sort();
    Ok(found)
}

fn is_segment(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Major and segment size from the long header of a segment.
fn geometry(path: &Path) -> Outcome<(PgMajor, SegmentSize)> {
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(XLOG_BLCKSZ).read_to_end(&mut head))
        .map_err(|error| io_failure(path, &error))?;
    let header = WalPageHeader::decode(&head).ok_or_else(|| {
        Failure::new(format!("{} is too short for a page of WAL", path.display()))
    })?;
    let major = PgMajor::from_wal_magic(header.magic)
        .map_err(|error| Failure::from(error).during(path.display()))?;
    let long = header.long.ok_or_else(|| {
        Failure::new(format!(
            "{} does not begin with a segment's header",
            path.display()
        ))
    })?;
    let size = SegmentSize::new(u64::from(long.segment_size))
        .map_err(|error| Failure::from(error).during(path.display()))?;
    Ok((major, size))
}

/// For each segment number the file of the newest timeline, from the one that holds `start` on.
fn chosen_segments(
    files: &[PathBuf],
    size: SegmentSize,
    start: Option<Lsn>,
) -> Outcome<Vec<Segment>> {
    let mut newest: BTreeMap<u64, (TimelineId, PathBuf)> = BTreeMap::new();
    for path in files {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some((timeline, number)) = size.parse_file_name(name) else {
            return Err(Failure::new(format!(
                "{} is not named as a WAL segment",
                path.display()
            )));
        };
        let entry = newest
            .entry(number)
            .or_insert_with(|| (timeline, path.clone()));
        if timeline > entry.0 {
            *entry = (timeline, path.clone());
        }
    }
    let first = start.map_or(0, |start| size.segment_of(start));
    Ok(newest
        .into_iter()
        .filter(|(number, _)| *number >= first)
        .map(|(number, (_, path))| Segment { number, path })
        .collect())
}

struct Printer<'a> {
    out: BufWriter<io::StdoutLock<'a>>,
    major: PgMajor,
    from: Lsn,
    left: u64,
    as_json: bool,
}

impl Printer<'_> {
    /// Prints one record; true when the limit is reached.
    fn record(&mut self, streamed: &StreamedRecord<'_>) -> Outcome<bool> {
        if streamed.start < self.from {
            return Ok(false);
        }
        if self.left == 0 {
            return Ok(true);
        }
        self.left -= 1;
        let record = Record::decode(streamed.bytes, self.major).map_err(|error| {
            Failure::from(error).during(format!("record at {}", streamed.start))
        })?;
        let line = if self.as_json {
            as_json(streamed, &record).to_string()
        } else {
            as_text(streamed, &record)
        };
        match writeln!(self.out, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(error) => Err(Failure::new(format!("stdout: {error}"))),
            Ok(()) => Ok(self.left == 0),
        }
    }

    fn finish(mut self) -> Outcome<()> {
        self.out
            .flush()
            .map_err(|error| Failure::new(format!("stdout: {error}")))
    }
}

fn as_text(streamed: &StreamedRecord<'_>, record: &Record<'_>) -> String {
    let header = &record.header;
    let mut text = format!(
        "rmgr: {:<17} len: {:>7}, tx: {:>10}, lsn: {}, prev {}, info: {:02X}",
        header.rmid.to_string(),
        header.tot_len,
        header.xid,
        streamed.start,
        header.prev,
        header.rmgr_info(),
    );
    for block in &record.blocks {
        text.push_str(&format!(
            ", blkref #{}: rel {}{} blk {}",
            block.id,
            block.rel,
            block.fork.suffix(),
            block.block
        ));
        if block.will_init {
            text.push_str(" init");
        }
        if let Some(image) = &block.image {
            text.push_str(if image.apply {
                " FPW"
            } else {
                " FPW for WAL verification"
            });
        }
    }
    text
}

fn as_json(streamed: &StreamedRecord<'_>, record: &Record<'_>) -> Value {
    let header = &record.header;
    let blocks: Vec<Value> = record
        .blocks
        .iter()
        .map(|block| {
            json!({
                "id": block.id,
                "relation": block.rel.to_string(),
                "fork": block.fork as u8,
                "block": block.block,
                "init": block.will_init,
                "image": block.image.as_ref().map(|image| json!({
                    "bytes": image.bytes.len(),
                    "apply": image.apply,
                })),
                "data_bytes": block.data.len(),
            })
        })
        .collect();
    json!({
        "lsn": streamed.start,
        "end": streamed.end,
        "prev": header.prev,
        "rmgr": header.rmid.to_string(),
        "rmgr_id": header.rmid.0,
        "info": header.info,
        "xid": header.xid,
        "length": header.tot_len,
        "main_bytes": record.main.len(),
        "blocks": blocks,
    })
}
