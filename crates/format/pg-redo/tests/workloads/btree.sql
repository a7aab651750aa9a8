-- B-tree: splits on every level, duplicates, deletion of tuples, of pages, of whole subtrees.
set client_min_messages = warning;
create table dup(id int, k int, t text);
create index dup_k on dup(k);
create index dup_t on dup(t);
insert into dup select i, i % 7, 'same' || i % 3 from generate_series(1, 6000) i;
insert into dup select i, (random() * 50)::int, 'same' || i % 3 from generate_series(6001, 9000) i;
delete from dup where id % 3 = 0;
vacuum dup;
insert into dup select i, i % 11, 'same1' from generate_series(9001, 12000) i;
delete from dup where k = 3;
vacuum dup;

-- Updates that cannot be HOT make tuples that splitting pages would rather delete.
create table churn(id int primary key, k int, v int) with (autovacuum_enabled = off);
create index churn_k on churn(k);
create index churn_v on churn(v);
insert into churn select i, i % 20, 0 from generate_series(1, 800) i;
do $$ begin for i in 1..8 loop update churn set v = v + 1; commit; end loop; end $$;
select count(*) from churn where k = 5 and v > 0;
set enable_seqscan = off;
select count(*) from churn where k between 3 and 9;
delete from churn where id % 2 = 0;
select count(*) from churn where k between 0 and 20;
select count(*) from churn where id between 0 and 800;
insert into churn select i, i % 20, 8 from generate_series(1001, 2500) i;
reset enable_seqscan;
vacuum churn;

-- Keys of a third of a page: a tall tree, splits of inner pages, deletion of inner pages.
create table tall(k text collate "C" primary key) with (autovacuum_enabled = off);
create function wide_key(i int) returns text language sql as
  $$ select lpad(i::text, 6, '0') || (select string_agg(md5((i * 100 + j)::text), '') from generate_series(1, 78) j) $$;
insert into tall select wide_key(i) from generate_series(1, 400) i;
insert into tall select wide_key((i * 7919) % 100000 + 1000) from generate_series(1, 200) i;
delete from tall where k > '000050' and k < '000350';
vacuum tall;
vacuum tall;
delete from tall where k < '000045';
vacuum tall;
vacuum tall;
vacuum tall;
insert into tall select wide_key(i) from generate_series(60, 160) i;
delete from tall;
vacuum tall;
vacuum tall;
insert into tall select wide_key(i) from generate_series(1, 60) i;

-- The same with keys of a tenth of a page.
create table middling(k text primary key) with (autovacuum_enabled = off);
insert into middling select lpad(i::text, 700, 'k') from generate_series(1, 1500) i;
delete from middling where k > lpad('3', 700, 'k') and k <> lpad('999', 700, 'k');
vacuum middling;
vacuum middling;
insert into middling select lpad('2499', 695, 'k') || lpad(i::text, 5, '0') from generate_series(1, 300) i;
delete from middling where k >= lpad('2499', 695, 'k');
vacuum middling;
vacuum middling;
insert into middling select 'a' || lpad(i::text, 690, 'k') from generate_series(1, 400) i;
reindex table dup;
insert into dup select i, i % 5, 'after' from generate_series(1, 1000) i;
create index concurrently dup_id on dup(id);
