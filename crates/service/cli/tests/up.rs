//! `strandline up`, as a user runs it: a database that survives everything being killed, and the loss
//! of the compute node's whole directory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pg_client::PgClient;
use testkit::{PgBinaries, process};

/// A cluster's directory and the `up` that runs on it.
struct Up {
    directory: tempfile::TempDir,
    child: Option<Child>,
    port: u16,
}

fn strandline() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strandline"))
}

impl Up {
    fn new() -> Up {
        // Under /tmp and open to everyone: as root, the server runs as another user.
        let directory = tempfile::Builder::new()
            .prefix("strandline-up-")
            .tempdir_in("/tmp")
            .unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Up {
            directory,
            child: None,
            port: 0,
        }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> String {
        let mut text = fs::read_to_string(self.directory.path().join("up.log")).unwrap_or_default();
        for part in ["compute", "storage", "log-0", "postgres"] {
            let path = self.data().join(format!("logs/{part}.log"));
            text.push_str(&format!(
                "== {part}\n{}\n",
                fs::read_to_string(path).unwrap_or_default()
            ));
        }
        text
    }

    /// Starts `up` on any free port and waits for its connection string.
    fn start(&mut self, extra: &[&str]) {
        let bin = PgBinaries::find(15).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("up.log"))
            .unwrap();
        let mut child = strandline()
            .arg("up")
            .arg("--data")
            .arg(self.data())
            .arg("--pg-bin")
            .arg(bin.directory())
            .args(["--listen", "127.0.0.1:0"])
            .args(extra)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        self.child = Some(child);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let Ok(line) = receive.recv_timeout(Duration::from_secs(120)) else {
            panic!("`up` did not get ready:\n{}", self.log());
        };
        let address = line
            .strip_prefix("postgresql://postgres@127.0.0.1:")
            .expect("a connection string");
        self.port = address.strip_suffix("/postgres").unwrap().parse().unwrap();
    }

    fn ask(&self, sql: &str) -> String {
        let mut client =
            PgClient::connect("127.0.0.1", self.port, "postgres", "postgres", &[], false).unwrap();
        client
            .simple_query(sql)
            .unwrap()
            .value(0)
            .unwrap_or_default()
            .to_owned()
    }

    fn kill_everything(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let family = process::family(child.id());
        process::signal(child.id(), libc::SIGKILL);
        for (one, _) in &family {
            process::signal(one.pid, libc::SIGKILL);
        }
        child.wait().unwrap();
    }

    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        process::signal(child.id(), libc::SIGINT);
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}\n{}", self.log());
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "does not stop:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        strandline()
            .args(arguments)
            .arg("--data")
            .arg(self.data())
            .output()
            .unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.kill_everything();
    }
}

fn pgbench(port: u16, arguments: &[&str]) {
    let program = PgBinaries::find(15).unwrap().program("pgbench").unwrap();
    let output = Command::new(program)
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()])
        .args(arguments)
        .arg("postgres")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn data_survives_kills_and_the_loss_of_the_compute_directory() {
    let mut up = Up::new();
    up.start(&[]);
    assert!(up.ask("SELECT version()").starts_with("PostgreSQL 15."));
    pgbench(up.port, &["-i", "-s", "1", "-q"]);
    up.ask("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS id");
    up.ask("CREATE UNLOGGED TABLE lost AS SELECT 1 AS id");
    up.ask("ALTER SYSTEM SET work_mem = '7MB'");
    // Without -n pgbench empties its history first.
    pgbench(up.port, &["-n", "-c", "4", "-t", "50"]);
    let history = up.ask("SELECT count(*) FROM pgbench_history");
    assert_eq!(history, "200");
    let balance = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)";
    assert_eq!(up.ask(balance), "t");
    // The manager keeps what ALTER SYSTEM wrote within a tenth of a second.
    std::thread::sleep(Duration::from_millis(500));

    up.kill_everything();
    up.start(&[]);
    assert_eq!(
        up.ask("SELECT count(*) || ' ' || sum(id) FROM kept"),
        "1000 500500"
    );
    assert_eq!(up.ask("SELECT count(*) FROM pgbench_history"), "200");
    assert_eq!(up.ask(balance), "t");
    assert_eq!(up.ask("SELECT count(*) FROM lost"), "0");
    assert_eq!(up.ask("SHOW work_mem"), "7MB");
    // Without -n pgbench empties its history first.
    pgbench(up.port, &["-n", "-c", "4", "-t", "50"]);

    up.stop();
    fs::remove_dir_all(up.data().join("compute")).unwrap();
    up.start(&[]);
    assert_eq!(up.ask("SELECT count(*) FROM pgbench_history"), "400");
    assert_eq!(up.ask(balance), "t");
    assert_eq!(
        up.ask("SELECT count(*) || ' ' || sum(id) FROM kept"),
        "1000 500500"
    );
    up.stop();
}

#[test]
fn the_compute_node_stops_starts_and_is_killed_on_request() {
    let mut up = Up::new();
    let none = up.run(&["status"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&none.stderr).contains("hint: "),
        "{none:?}"
    );
    up.start(&["--log-stores", "3"]);
    up.ask("CREATE TABLE kept AS SELECT 42 AS id");
    let state = |up: &Up| {
        let output = up.run(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["log_stores"].as_array().unwrap().len(), 3);
        status["compute"]["status"]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(state(&up), "ready");
    assert!(up.run(&["compute", "stop"]).status.success());
    assert_eq!(state(&up), "stopped");
    assert!(PgClient::connect("127.0.0.1", up.port, "postgres", "postgres", &[], false).is_err());
    assert!(up.run(&["compute", "start"]).status.success());
    assert_eq!(up.ask("SELECT id FROM kept"), "42");
    assert!(up.run(&["compute", "kill"]).status.success());
    assert!(up.run(&["compute", "start"]).status.success());
    assert_eq!(up.ask("SELECT id FROM kept"), "42");
    let second = strandline()
        .arg("up")
        .arg("--data")
        .arg(up.data())
        .args(["--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("already"),
        "{second:?}"
    );
    up.stop();
}

#[test]
fn a_taken_port_and_a_foreign_directory_are_refused_with_a_hint() {
    let up = Up::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let refused = |data: &Path, listen: &str| {
        let output = strandline()
            .arg("up")
            .arg("--data")
            .arg(data)
            .args(["--listen", listen])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&up.data(), &taken);
    assert!(
        text.contains("is taken") && text.contains("hint: choose another: --listen"),
        "{text}"
    );
    let foreign = up.directory.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letters.txt"), "mine").unwrap();
    if fs::metadata("/proc/self")
        .is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0)
    {
        // As root it is refused because it belongs to somebody else; give it away first.
        let user = testkit::OrdinaryUser::current().unwrap();
        user.own(&foreign).unwrap();
    }
    let text = refused(&foreign, "127.0.0.1:0");
    assert!(
        text.contains("letters.txt") && text.contains("hint: "),
        "{text}"
    );
    assert_eq!(
        fs::read_to_string(foreign.join("letters.txt")).unwrap(),
        "mine"
    );
}
