-- Heap: every way a tuple comes, changes and goes, on tables with and without indexes.
set client_min_messages = warning;
create table plain(id int, a int, b text, pad text) with (fillfactor = 80);
create table keyed(id int primary key, a int, b text, pad text) with (fillfactor = 70);
create index keyed_a on keyed(a);
create table child(id int primary key, parent int references keyed(id), v text);

insert into plain select i, i % 37, repeat('x', i % 50), null from generate_series(1, 5000) i;
insert into keyed select i, i % 37, repeat('x', i % 50), null from generate_series(1, 5000) i;
copy plain from program 'seq -f "%g,5,copy,pad" 10001 13000' with (format csv);
copy keyed from program 'seq -f "%g,5,copy,pad" 10001 12000' with (format csv);
insert into child select i, i, 'v' from generate_series(1, 400) i;

-- Updates: HOT with shared prefix and suffix, to other pages, growing, of the indexed column.
update keyed set b = b || 'tail' where id % 3 = 0;
update keyed set pad = 'front' || coalesce(pad, '') where id % 7 = 0;
update keyed set a = a + 1 where id % 5 = 0;
update keyed set pad = repeat('P', 1500) where id % 11 = 0;
update plain set b = 'y' || b where id % 4 = 0;
update plain set pad = null, b = null where id % 13 = 0;
delete from keyed where id between 501 and 2500;
delete from plain where id % 6 = 0;
vacuum keyed;
vacuum plain;
insert into keyed select i, i % 37, 'again', null from generate_series(501, 1500) i;
update keyed set a = a where id between 600 and 900;
select count(*) from (select * from plain where id < 500) x;
update plain set a = a + 1 where id < 3000;
update plain set a = a + 1 where id < 3000;
vacuum plain;

-- A table whose tail goes: vacuum cuts the file and the visibility map in its middle.
create table tail(id int, v text);
insert into tail select i, repeat('t', 200) from generate_series(1, 8000) i;
vacuum (freeze) tail;
delete from tail where id > 3000;
vacuum tail;
insert into tail select i, 'back' from generate_series(1, 2000) i;
delete from tail;
vacuum tail;
insert into tail select i, 'and again' from generate_series(1, 500) i;

-- Freezing, and what thaws a frozen page.
vacuum (freeze) keyed;
vacuum (freeze) child;
select count(*) from (select * from keyed where id between 3000 and 3300 for update) x;
select count(*) from (select * from child for share) x;
update keyed set a = 1 where id between 10100 and 10200;
delete from keyed where id between 10201 and 10300;
insert into keyed select i, 1, 'thaw', null from generate_series(20001, 21000) i;
begin;
create table frozen(a int, b text);
copy frozen from program 'seq -f "%g,zzz" 1 3000' with (format csv, freeze);
commit;
update frozen set b = 'thawed' where a % 500 = 0;
vacuum (freeze) frozen;

-- Rows that move to another partition, and rows too long for a page.
create table parted(k int, v text) partition by list (k);
create table parted1 partition of parted for values in (1);
create table parted2 partition of parted for values in (2);
insert into parted select 1, 'a' from generate_series(1, 100);
update parted set k = 2 where ctid in (select ctid from parted1 limit 40);
create table long(id int, t text);
insert into long
  select i, (select string_agg(md5((i * 1000 + j)::text), '') from generate_series(1, 200) j)
  from generate_series(1, 60) i;
update long set t = t || 'x' where id % 3 = 0;
delete from long where id % 4 = 0;
vacuum long;

-- Speculative insertion.
create table uniq(k int primary key, n int);
insert into uniq select i, 0 from generate_series(1, 300) i on conflict do nothing;
insert into uniq select i, 0 from generate_series(200, 600) i on conflict (k) do update set n = uniq.n + 1;
vacuum (freeze, analyze);
