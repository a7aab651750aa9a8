-- Mixed DDL and DML: everything an application may do between two dumps. Deterministic: no random(),
-- no clock in stored data, so that pg_dump of two servers can be compared byte for byte.
\set ON_ERROR_STOP on
SET synchronous_commit = on;

-- Tables of every storage shape.
CREATE TABLE plain (id int PRIMARY KEY, a int, b text) WITH (fillfactor = 70);
INSERT INTO plain SELECT g, g % 97, 'row ' || g FROM generate_series(1, 20000) g;
CREATE TABLE wide (id int PRIMARY KEY, doc text);
ALTER TABLE wide ALTER doc SET STORAGE EXTERNAL;
INSERT INTO wide SELECT g, repeat(md5(g::text), 400) FROM generate_series(1, 300) g;
CREATE TABLE packed (id int PRIMARY KEY, doc text);
INSERT INTO packed SELECT g, repeat(chr(65 + g % 26) || g, 3000) FROM generate_series(1, 200) g;
CREATE TABLE parted (id int, k int) PARTITION BY RANGE (k);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (50);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (50) TO (100);
INSERT INTO parted SELECT g, g % 100 FROM generate_series(1, 5000) g;

-- Updates that stay on the page, updates that leave it, deletes, vacuum, freezing.
UPDATE plain SET a = a + 1 WHERE id % 3 = 0;
UPDATE plain SET b = b || repeat('!', 200) WHERE id % 11 = 0;
DELETE FROM plain WHERE id % 7 = 0;
VACUUM (ANALYZE) plain;
INSERT INTO plain SELECT g, g, 'again ' || g FROM generate_series(20001, 24000) g;
DELETE FROM plain WHERE id > 22000;
VACUUM plain;
VACUUM (FREEZE) plain;
UPDATE plain SET a = -a WHERE id BETWEEN 100 AND 140;
SELECT count(*), sum(a) FROM plain;

-- Every index access method, built on data and then grown, shrunk and vacuumed.
CREATE TABLE things (id int, tags text[], area box, label text, amount int, body tsvector, spot point);
INSERT INTO things SELECT g, ARRAY['t' || g % 40, 't' || g % 7], box(point(g % 300, g % 200), point(g % 300 + 3, g % 200 + 2)),
  md5((g * 31)::text), g % 1000, to_tsvector('simple', 'word' || g % 50 || ' word' || g % 333), point(g % 500, g % 400)
  FROM generate_series(1, 6000) g;
CREATE INDEX things_btree ON things (amount, id);
CREATE INDEX things_hash ON things USING hash (label);
CREATE INDEX things_gin ON things USING gin (tags);
CREATE INDEX things_gin_slow ON things USING gin (body) WITH (fastupdate = off);
CREATE INDEX things_gist ON things USING gist (area);
CREATE INDEX things_spgist_text ON things USING spgist (label);
CREATE INDEX things_spgist_point ON things USING spgist (spot);
CREATE INDEX things_brin ON things USING brin (id) WITH (pages_per_range = 4);
INSERT INTO things SELECT g, ARRAY['t' || g % 41, 'u' || g % 5], box(point(g % 310, g % 210), point(g % 310 + 1, g % 210 + 5)),
  md5((g * 17)::text), g % 900, to_tsvector('simple', 'word' || g % 60 || ' late' || g % 77), point(g % 510, g % 390)
  FROM generate_series(6001, 9000) g;
DELETE FROM things WHERE id % 4 = 0;
VACUUM things;
UPDATE things SET label = label || 'z', tags = tags || 'more'::text WHERE id % 10 = 1;
REINDEX INDEX things_btree;
REINDEX TABLE things;

-- Rewrites.
CLUSTER things USING things_btree;
VACUUM FULL plain;
ALTER TABLE plain ADD COLUMN c bigint;
ALTER TABLE plain ALTER a TYPE bigint;
UPDATE plain SET c = a * 2 WHERE id % 5 = 0;
TRUNCATE parted_low;
INSERT INTO parted SELECT g, g % 50 FROM generate_series(6000, 6500) g;
CREATE TABLE short_lived AS SELECT * FROM plain;
DROP TABLE short_lived;
CREATE MATERIALIZED VIEW summary AS SELECT amount % 10 AS bucket, count(*) AS n FROM things GROUP BY 1;
REFRESH MATERIALIZED VIEW summary;

-- Truncate and refill in one transaction, and one that is rolled back.
BEGIN; TRUNCATE wide; INSERT INTO wide SELECT g, repeat(md5((g + 1)::text), 300) FROM generate_series(1, 200) g; COMMIT;
BEGIN; TRUNCATE packed; INSERT INTO packed VALUES (1, 'gone'); ROLLBACK;

-- Subtransactions, savepoints, deep nesting.
CREATE TABLE nested (id int, v text);
BEGIN;
INSERT INTO nested VALUES (1, 'kept');
SAVEPOINT a; INSERT INTO nested VALUES (2, 'undone'); ROLLBACK TO a;
SAVEPOINT b; INSERT INTO nested VALUES (3, 'kept'); SAVEPOINT c; INSERT INTO nested VALUES (4, 'kept'); RELEASE c; RELEASE b;
COMMIT;
DO $$ BEGIN
  FOR i IN 1..200 LOOP
    BEGIN
      INSERT INTO nested VALUES (100 + i, 'loop');
      IF i % 3 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
  END LOOP;
END $$;

-- Two-phase commit: one committed, one rolled back, one left prepared (committed at the end).
CREATE TABLE prepared (id int, v text);
BEGIN; INSERT INTO prepared VALUES (1, 'committed'); SAVEPOINT p; INSERT INTO prepared VALUES (2, 'committed'); PREPARE TRANSACTION 'one';
BEGIN; INSERT INTO prepared VALUES (3, 'rolled back'); PREPARE TRANSACTION 'two';
BEGIN; INSERT INTO prepared VALUES (4, 'late'); PREPARE TRANSACTION 'three';
COMMIT PREPARED 'one';
ROLLBACK PREPARED 'two';

-- Row locks that become multixacts.
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
INSERT INTO parent SELECT g, 0 FROM generate_series(1, 50) g;
INSERT INTO child SELECT g, g % 50 + 1 FROM generate_series(1, 500) g;
BEGIN; SELECT count(*) FROM (SELECT * FROM parent FOR KEY SHARE) x; SAVEPOINT s; UPDATE parent SET v = v + 1 WHERE id <= 25; COMMIT;
BEGIN; SELECT count(*) FROM (SELECT * FROM parent FOR SHARE) x; SAVEPOINT s; SELECT count(*) FROM (SELECT * FROM parent FOR UPDATE) x; COMMIT;

-- Sequences, unlogged and temporary tables.
CREATE SEQUENCE counter CACHE 5;
SELECT count(nextval('counter')) FROM generate_series(1, 100);
SELECT setval('counter', 5000);
CREATE TABLE serials (id bigint GENERATED ALWAYS AS IDENTITY, v text);
INSERT INTO serials (v) SELECT 'v' || g FROM generate_series(1, 100) g;
CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY, v text);
CREATE INDEX scratch_gin ON scratch USING gin (to_tsvector('simple', v));
INSERT INTO scratch SELECT g, 'unlogged ' || g FROM generate_series(1, 1000) g;
CREATE TEMP TABLE passing AS SELECT * FROM plain LIMIT 1000;
CREATE INDEX ON passing (id);
UPDATE passing SET a = 0;
SELECT count(*) FROM passing WHERE a = 0;
CREATE UNLOGGED TABLE promoted (id int PRIMARY KEY, v text);
INSERT INTO promoted SELECT g, 'p' || g FROM generate_series(1, 500) g;
ALTER TABLE promoted SET LOGGED;

-- Upserts and speculative insertion.
INSERT INTO parent SELECT g, 7 FROM generate_series(40, 60) g ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO parent VALUES (1, 9), (2, 9) ON CONFLICT DO NOTHING;

-- Bulk load by COPY, then large objects.
CREATE TABLE copied (id int, v text);
COPY copied FROM PROGRAM 'seq 1 3000 | sed "s/.*/&\tcopied &/"';
SELECT lo_from_bytea(70001, decode(repeat('abcd', 5000), 'hex'));

-- A table moved to another tablespace.
CREATE TABLESPACE elsewhere LOCATION :'tablespace';
ALTER TABLE copied SET TABLESPACE elsewhere;
CREATE TABLE born_there (id int PRIMARY KEY, v text) TABLESPACE elsewhere;
INSERT INTO born_there SELECT g, md5(g::text) FROM generate_series(1, 4000) g;
UPDATE copied SET v = v || '.' WHERE id % 2 = 0;

-- Index page deletion: empty a large part of a B-tree and vacuum twice.
CREATE TABLE churn (id int PRIMARY KEY, v int);
INSERT INTO churn SELECT g, g FROM generate_series(1, 60000) g;
DELETE FROM churn WHERE id BETWEEN 5000 AND 55000;
VACUUM churn;
VACUUM churn;
INSERT INTO churn SELECT g, -g FROM generate_series(20000, 30000) g;

-- Databases by both strategies; the copied one has changes of its own afterwards.
CREATE DATABASE by_log STRATEGY = wal_log;
CREATE DATABASE by_copy TEMPLATE template0 STRATEGY = file_copy;
\connect by_copy
CREATE TABLE inside (id int PRIMARY KEY, v text);
INSERT INTO inside SELECT g, md5(g::text) FROM generate_series(1, 2000) g;
\connect by_log
CREATE TABLE inside (id int PRIMARY KEY, v text);
INSERT INTO inside SELECT g, md5((g + 7)::text) FROM generate_series(1, 2000) g;
VACUUM FULL pg_class;
CREATE DATABASE from_copy TEMPLATE by_copy STRATEGY = file_copy;
CREATE DATABASE dropped STRATEGY = wal_log;
DROP DATABASE dropped;
\connect from_copy
UPDATE inside SET v = 'changed' WHERE id % 10 = 0;
\connect mixed
COMMIT PREPARED 'three';
CHECKPOINT;
VACUUM;
