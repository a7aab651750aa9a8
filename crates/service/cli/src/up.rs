//! `strandline up` and `strandline import`: from arguments to a running or new cluster.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use compute::layout::{ClusterDescription, Layout, replace_file};
use compute::leftover::end_processes;
use compute::postgres::PostgresBinary;

use crate::arguments::{CreateArguments, UpArguments};
use crate::binaries::{find_postgres, find_shim};
use crate::create::{Source, create, settle};
use crate::error::{Failure, Outcome};
use crate::privileges::{data_directory, prepare_data_directory};
use crate::supervisor::{RunOptions, run};

/// A data directory that this process alone works on.
struct Claimed {
    layout: Layout,
    _lock: File,
}

/// Runs a cluster, making it first if the directory is empty.
///
/// # Errors
/// [`Failure`] with the remedy.
pub fn up(arguments: &UpArguments) -> Outcome<()> {
    let (host, port) = parse_listen(&arguments.listen)?;
    let claimed = claim(&arguments.create)?;
    let layout = &claimed.layout;
    let stop = stop_on_signals()?;
    let (cluster, binary) = if settle(layout)? {
        existing(layout, &arguments.create)?
    } else {
        let binary = find_postgres(arguments.create.pg_bin.as_deref(), None, None)?;
        let stores = log_store_count(&arguments.create).unwrap_or(1);
        (
            create(layout, &Source::Initdb, &binary, stores, &stop)?,
            binary,
        )
    };
    // What a killed `up` left holds the port still.
    end_processes(&layout.compute())?;
    let port = choose_port(&host, port)?;
    let pg_bin = binary.path.parent().unwrap_or(Path::new("/")).to_owned();
    let options = RunOptions {
        listen_host: host,
        listen_port: port,
        pg_bin,
        cache_bytes: arguments.cache_size.unwrap_or(0),
        read_timeout_ms: arguments.read_timeout.saturating_mul(1000),
    };
    run(layout, &cluster, &options, &stop)
}

/// Makes a cluster from a stopped stock one.
///
/// # Errors
/// [`Failure`] with the remedy.
pub fn import(from: &Path, arguments: &CreateArguments) -> Outcome<()> {
    let from = std::path::absolute(from)?;
    let claimed = claim(arguments)?;
    let layout = &claimed.layout;
    if settle(layout)? {
        return Err(Failure::new(format!(
            "{} holds a cluster already",
            layout.data().display()
        ))
        .hint("name an empty or new directory with --data"));
    }
    let stop = stop_on_signals()?;
    let major = source_major(&from)?;
    let binary = find_postgres(arguments.pg_bin.as_deref(), None, Some(major))?;
    let stores = log_store_count(arguments).unwrap_or(1);
    let cluster = create(layout, &Source::Import(from), &binary, stores, &stop)?;
    eprintln!(
        "Imported cluster {} (PostgreSQL {}). Start it: strandline up --data {}",
        cluster.system_identifier,
        cluster.major,
        layout.data().display()
    );
    Ok(())
}

/// The major in a data directory's `PG_VERSION`.
fn source_major(pgdata: &Path) -> Outcome<pg_types::PgMajor> {
    let path = pgdata.join("PG_VERSION");
    let text = fs::read_to_string(&path).map_err(|error| {
        let failure = Failure::new(format!("{}: {error}", path.display()));
        if error.kind() == io::ErrorKind::PermissionDenied {
            failure.hint("the user that Strandline runs as must be able to read it: name its owner with --user")
        } else {
            failure.hint("name a PostgreSQL data directory with --from")
        }
    })?;
    let number: u32 = text.trim().parse().map_err(|_| {
        Failure::new(format!(
            "{} says {:?}, which is no major",
            path.display(),
            text.trim()
        ))
    })?;
    pg_types::PgMajor::try_from(number).map_err(|_| {
        Failure::new(format!(
            "{} is a data directory of PostgreSQL {number}",
            pgdata.display()
        ))
        .hint("14 to 18 are supported: upgrade it with pg_upgrade, then import it")
    })
}

/// Reads and checks an existing cluster.
fn existing(
    layout: &Layout,
    arguments: &CreateArguments,
) -> Outcome<(ClusterDescription, PostgresBinary)> {
    let cluster = ClusterDescription::read(&layout.cluster_file())?;
    if let Some(wanted) = log_store_count(arguments).filter(|wanted| *wanted != cluster.log_stores)
    {
        return Err(Failure::new(format!(
            "the cluster in {} has {} log store(s), not {wanted}",
            layout.data().display(),
            cluster.log_stores
        ))
        .hint("leave --log-stores out; the number is chosen when a cluster is made"));
    }
    let binary = find_postgres(
        arguments.pg_bin.as_deref(),
        Some(&cluster.pg_bin),
        Some(cluster.major),
    )?;
    Ok((cluster, binary))
}

fn log_store_count(arguments: &CreateArguments) -> Option<usize> {
    arguments
        .log_stores
        .as_ref()
        .and_then(|count| count.parse().ok())
}

/// Becomes an ordinary user, locks the data directory, makes its directories and puts the shim there.
fn claim(arguments: &CreateArguments) -> Outcome<Claimed> {
    let data = data_directory(arguments.data.data.as_deref())?;
    // Read while we still can: the program may lie in a home directory that only root may enter.
    let shim = find_shim()?;
    let shim_bytes =
        fs::read(&shim).map_err(|error| Failure::new(format!("{}: {error}", shim.display())))?;
    prepare_data_directory(&data, arguments.user.as_deref())?;
    // A directory the new user cannot enter must not stay the working directory.
    if std::env::current_dir().is_err() || fs::metadata(".").is_err() {
        std::env::set_current_dir("/")?;
    }
    let layout = Layout::new(data);
    let lock = lock(&layout)?;
    for directory in [layout.run(), layout.logs(), layout.data().join("lib")] {
        make_directory(&directory)?;
    }
    let target = layout.shim();
    replace_file(&target, &shim_bytes)
        .map_err(|error| Failure::new(format!("{}: {error}", target.display())))?;
    Ok(Claimed {
        layout,
        _lock: lock,
    })
}

fn make_directory(path: &Path) -> Outcome<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::new(format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

#[allow(
    unsafe_code,
    reason = "flock has no wrapper in std that says who holds it"
)]
fn lock(layout: &Layout) -> Outcome<File> {
    use std::os::fd::AsRawFd;
    let path = layout.lock_file();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    // SAFETY: the descriptor is open for the whole call.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if locked == 0 {
        return Ok(file);
    }
    Err(Failure::new(format!(
        "another strandline works on {} already",
        layout.data().display()
    ))
    .hint("see `strandline status`, or name another directory with --data"))
}

/// A flag that the first Ctrl-C or SIGTERM sets; the second ends the process at once, and the kernel
/// every part with it.
fn stop_on_signals() -> Outcome<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn parse_listen(text: &str) -> Outcome<(String, u16)> {
    let fail = || {
        Failure::new(format!("\"{text}\" is no address to listen on"))
            .hint("expected HOST:PORT, such as 127.0.0.1:5432, 0.0.0.0:5432 or [::1]:5432")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let port = port.parse().map_err(|_| fail())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(fail());
    }
    Ok((host.to_owned(), port))
}

/// Makes sure PostgreSQL will be able to listen; for port 0, picks a free one.
fn choose_port(host: &str, port: u16) -> Outcome<u16> {
    let probe = if host == "*" { "0.0.0.0" } else { host };
    let addresses = (probe, port)
        .to_socket_addrs()
        .map_err(|error| Failure::new(format!("cannot listen on {host}: {error}")))?;
    let mut chosen = port;
    for mut address in addresses {
        address.set_port(chosen);
        let listener = bind_patiently(address).map_err(|error| {
            let failure = Failure::new(format!("cannot listen on {host}:{port}: {error}"));
            match error.kind() {
                io::ErrorKind::AddrInUse => Failure::new(format!("port {port} on {host} is taken"))
                    .hint(format!(
                        "choose another: --listen {host}:{}",
                        suggest(host).unwrap_or(5433)
                    )),
                io::ErrorKind::PermissionDenied => failure.hint("choose a port above 1023"),
                _ => failure.hint("name an address of this machine with --listen"),
            }
        })?;
        chosen = listener.local_addr()?.port();
    }
    Ok(chosen)
}

/// A server that has just been killed may hold the port for a moment.
fn bind_patiently(address: std::net::SocketAddr) -> io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && begun.elapsed() < Duration::from_millis(300) =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

fn suggest(host: &str) -> Option<u16> {
    let probe = if host == "*" { "0.0.0.0" } else { host };
    Some(
        TcpListener::bind((probe, 0))
            .ok()?
            .local_addr()
            .ok()?
            .port(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_read() {
        assert_eq!(
            parse_listen("127.0.0.1:0").unwrap(),
            ("127.0.0.1".to_owned(), 0)
        );
        assert_eq!(parse_listen("[::1]:99").unwrap(), ("::1".to_owned(), 99));
        assert!(parse_listen("5432").is_err());
        assert!(parse_listen(":5432").is_err());
        assert!(parse_listen("host:port").is_err());
    }

    #[test]
    fn a_taken_port_is_named_with_another_one() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let failure = choose_port("127.0.0.1", port).unwrap_err();
        assert_eq!(
            failure.message,
            format!("port {port} on 127.0.0.1 is taken")
        );
        assert!(failure.hint.unwrap().contains("--listen 127.0.0.1:"));
        assert_ne!(choose_port("127.0.0.1", 0).unwrap(), 0);
    }
}
