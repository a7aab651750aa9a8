//! What the stock server is made to do.

use std::path::Path;

use testkit::{OrdinaryUser, PgBinaries, StockServer};

/// A cluster with a compute node's settings.
pub(super) fn server(major: u32, dir: &Path, checksums: bool) -> StockServer {
    // The server's user must get into it.
    let user = OrdinaryUser::current().unwrap();
    user.own(dir).unwrap();
    let binaries = PgBinaries::find(major).unwrap();
    let checksums: &[&str] = if checksums { &["-k"] } else { &[] };
    let settings = [
        ("full_page_writes", "off"),
        ("wal_consistency_checking", "gin,gist,spgist,hash,brin"),
        ("max_prepared_transactions", "5"),
        ("track_commit_timestamp", "on"),
        ("shared_buffers", "2MB"),
        ("wal_keep_size", "2GB"),
        ("max_wal_size", "2GB"),
        ("autovacuum_naptime", "1s"),
        ("wal_compression", "on"),
    ];
    StockServer::init(binaries, &dir.join("server"), checksums, &settings).unwrap()
}

/// Runs a script, statement by statement.
fn script(server: &StockServer, database: &str, text: &str) {
    let mut psql = server.client("psql").unwrap();
    psql.args([
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        database,
        "-f",
        "-",
    ]);
    psql.stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null());
    let mut child = psql.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(
        child.wait().unwrap().success(),
        "the script on {database} failed"
    );
}

pub(super) fn before_import(server: &StockServer, dir: &Path) {
    let location = dir.join("fast");
    std::fs::create_dir_all(&location).unwrap();
    OrdinaryUser::current().unwrap().own(&location).unwrap();
    script(
        server,
        "postgres",
        &format!("CREATE TABLESPACE fast LOCATION '{}';", location.display()),
    );
    script(server, "postgres", OBJECTS);
    script(
        server,
        "postgres",
        "CREATE DATABASE other; CREATE DATABASE moved;",
    );
    script(server, "other", OBJECTS);
    script(
        server,
        "other",
        "CREATE TABLE away (i int) TABLESPACE fast; INSERT INTO away VALUES (1);",
    );
    script(
        server,
        "postgres",
        "BEGIN; INSERT INTO rows(t) VALUES ('prepared'); PREPARE TRANSACTION 'early';",
    );
}

pub(super) fn after_import(server: &StockServer, _dir: &Path) {
    let copy = |strategy: &str| {
        // 14 and before know one strategy only; the tests run 15 and later.
        format!("CREATE DATABASE by_{strategy} TEMPLATE other STRATEGY {strategy};")
    };
    script(server, "postgres", CHANGES);
    script(
        server,
        "other",
        "VACUUM FULL pg_class; REINDEX SYSTEM other;",
    );
    script(server, "postgres", &copy("file_copy"));
    script(server, "postgres", &copy("wal_log"));
    for database in ["other", "by_file_copy", "by_wal_log"] {
        script(server, database, CHANGES);
    }
    script(
        server,
        "postgres",
        "ALTER DATABASE moved SET TABLESPACE fast; COMMIT PREPARED 'early'; DROP DATABASE by_wal_log;
         BEGIN; INSERT INTO rows(t) VALUES ('late'); CREATE TABLE in_doubt (i int);
         PREPARE TRANSACTION 'late'; CHECKPOINT;",
    );
    script(
        server,
        "postgres",
        "BEGIN; CREATE TABLE never (i int); INSERT INTO never VALUES (1); ROLLBACK;",
    );
}

const OBJECTS: &str = "
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE TABLE rows (id serial PRIMARY KEY, t text, n int, p point, d int[], filler text);
INSERT INTO rows (t, n, p, d, filler)
  SELECT 'row ' || i, i % 97, point(i % 31, i % 37), ARRAY[i % 7, i % 11, i], repeat('x', i % 300)
  FROM generate_series(1, 1500) i;
CREATE INDEX rows_n ON rows (n);
CREATE INDEX rows_hash ON rows USING hash (t);
CREATE INDEX rows_gin ON rows USING gin (d);
CREATE INDEX rows_trgm ON rows USING gin (t gin_trgm_ops);
CREATE INDEX rows_gist ON rows USING gist (p);
CREATE INDEX rows_spgist ON rows USING spgist (p);
CREATE INDEX rows_brin ON rows USING brin (n);
CREATE TABLE toasted (id int PRIMARY KEY, t text);
INSERT INTO toasted SELECT i, string_agg(md5(i::text || j::text), '') FROM generate_series(1, 30) i, generate_series(1, 150) j GROUP BY i;
CREATE UNLOGGED TABLE unlogged (id serial PRIMARY KEY, t text);
INSERT INTO unlogged (t) SELECT 'gone' FROM generate_series(1, 500);
CREATE SEQUENCE counter; SELECT nextval('counter') FROM generate_series(1, 50);
CREATE TABLE emptied (i int); INSERT INTO emptied SELECT generate_series(1, 5000);
VACUUM ANALYZE;
";

const CHANGES: &str = "
UPDATE rows SET n = n + 1, t = t || '!' WHERE id % 3 = 0;
DELETE FROM rows WHERE id % 5 = 0;
INSERT INTO rows (t, n, p, d) SELECT 'new ' || i, i, point(i, i % 3), ARRAY[i] FROM generate_series(1, 1200) i;
BEGIN;
SAVEPOINT a; INSERT INTO rows (t) VALUES ('sub a'); SAVEPOINT b; INSERT INTO rows (t) VALUES ('sub b');
ROLLBACK TO a; INSERT INTO rows (t) VALUES ('sub c'); RELEASE a;
COMMIT;
BEGIN;
SELECT count(*) FROM (SELECT 1 FROM rows WHERE id < 800 FOR KEY SHARE) s;
SAVEPOINT c; UPDATE rows SET filler = 'multi' WHERE id < 700; SAVEPOINT d;
SELECT count(*) FROM (SELECT 1 FROM rows WHERE id < 900 FOR NO KEY UPDATE) s;
COMMIT;
DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO rows (t) VALUES ('loop' || i);
  IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$;
VACUUM (FREEZE) rows;
DELETE FROM rows WHERE id > 1200;
VACUUM rows;
BEGIN; SELECT count(*) FROM (SELECT 1 FROM rows WHERE id < 300 FOR UPDATE) s; ROLLBACK;
UPDATE toasted SET t = t || t WHERE id % 4 = 0; DELETE FROM toasted WHERE id % 7 = 0; VACUUM toasted;
TRUNCATE emptied; INSERT INTO emptied SELECT generate_series(1, 300);
DELETE FROM emptied WHERE i > 100; VACUUM emptied;
INSERT INTO unlogged (t) SELECT 'gone too' FROM generate_series(1, 2000);
CREATE TABLE fresh AS SELECT i, md5(i::text) AS m FROM generate_series(1, 8000) i;
CREATE INDEX ON fresh (m); CREATE UNIQUE INDEX fresh_i ON fresh (i);
INSERT INTO fresh SELECT i, 'same' FROM generate_series(8001, 14000) i;
INSERT INTO fresh VALUES (1, 'conflict') ON CONFLICT DO NOTHING;
DELETE FROM fresh WHERE i BETWEEN 2000 AND 11000; VACUUM fresh; VACUUM fresh;
CLUSTER fresh USING fresh_i;
CREATE TABLE dropped (i int); INSERT INTO dropped SELECT generate_series(1, 1000); DROP TABLE dropped;
CREATE TEMP TABLE temporary AS SELECT generate_series(1, 100);
CREATE TABLE in_fast (i int PRIMARY KEY) TABLESPACE fast; INSERT INTO in_fast SELECT generate_series(1, 2000);
ALTER TABLE in_fast SET TABLESPACE pg_default; ALTER TABLE toasted SET TABLESPACE fast;
ALTER TABLE unlogged SET LOGGED;
SELECT nextval('counter') FROM generate_series(1, 40);
VACUUM FULL pg_attribute; REINDEX TABLE pg_class; VACUUM (FREEZE) pg_class;
";
