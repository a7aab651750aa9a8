-- Indexes whose pages come from after-images, with images plain and compressed.
set client_min_messages = warning;
select setseed(0.42);
create extension bloom;
create table g(id int primary key, tags int[], txt text, p point, r int4range, h text, ts int);
create index g_gin on g using gin (tags) with (fastupdate = on, gin_pending_list_limit = 64);
create index g_gist on g using gist (p);
create index g_gistr on g using gist (r);
create index g_spg on g using spgist (p);
create index g_spgt on g using spgist (txt);
create index g_hash on g using hash (h);
create index g_brin on g using brin (ts) with (pages_per_range = 2, autosummarize = off);
create index g_bloom on g using bloom (id, ts);

create function fill(low int, high int) returns void language sql as $$
  insert into g select i, array[(random() * 100)::int, (random() * 20)::int],
    substr(md5((i % 300)::text), 1, 6) || i, point(random() * 1000, random() * 1000),
    int4range((random() * 10000)::int, 10000 + (random() * 1000)::int), md5((i / 3)::text), i
  from generate_series(low, high) i $$;

select fill(1, 500);
set wal_compression = on;
select fill(501, 1200);
-- Builds without these methods keep the former one.
do $$ begin perform set_config('wal_compression', 'lz4', false); exception when others then null; end $$;
select fill(1201, 1800);
do $$ begin perform set_config('wal_compression', 'zstd', false); exception when others then null; end $$;
select fill(1801, 2400);
set wal_compression = off;
select brin_summarize_new_values('g_brin');
delete from g where id % 3 = 0;
vacuum g;
select fill(20001, 20800);
update g set ts = ts + 1, h = md5(h) where id % 7 = 1;
select brin_desummarize_range('g_brin', 0);
select brin_summarize_new_values('g_brin');
delete from g where id between 500 and 1500;
vacuum (index_cleanup on) g;
reindex index g_gist;
reindex index g_gin;
select fill(30001, 30300);

-- Wide keys, so that inner pages of a GiST split as well.
create table wide(p point, r int4range, b box, c circle);
create index wide_gist on wide using gist (p, r, b, c);
insert into wide
  select p, int4range(i, i + 10), box(p, point(p[0] + 1, p[1] + 1)), circle(p, 2)
  from (select i, point(random() * 1000, random() * 1000) p from generate_series(1, 5000) i) x;
