-- Ends of transactions: subtransactions, two-phase commit, multixacts, sequences.
set client_min_messages = warning;
create table t(id int primary key, n int);
insert into t select i, 0 from generate_series(1, 3000) i;

begin;
savepoint s1;
select count(*) from (select * from t where id < 200 for key share) x;
savepoint s2;
select count(*) from (select * from t where id < 100 for update) x;
update t set n = n + 1 where id < 50;
rollback to s2;
update t set n = 9 where id < 20;
commit;

-- Locks by a transaction and its subtransaction: a multixact for each row, several pages of them.
begin;
select count(*) from (select * from t for key share) x;
savepoint s1;
select count(*) from (select * from t for share) x;
savepoint s2;
update t set n = n + 1 where id % 2 = 0;
commit;
begin;
select count(*) from (select * from t for share) x;
savepoint s1;
select count(*) from (select * from t for no key update) x;
rollback;

begin; insert into t values (9001, 1); prepare transaction 'p1';
begin; savepoint a; insert into t values (9002, 1); savepoint b; delete from t where id = 1; prepare transaction 'p2';
begin; update t set n = 5 where id = 77; savepoint a; update t set n = 6 where id = 78; prepare transaction 'p3';
commit prepared 'p1';
rollback prepared 'p2';
commit prepared 'p3';
begin; insert into t values (9003, 1); prepare transaction 'left open';
begin; create table dropped_later(a int); insert into dropped_later values (1); rollback;

create sequence s; create sequence s_cached cache 7;
select count(nextval('s')), count(nextval('s_cached')) from generate_series(1, 500);
select setval('s_cached', 100000);
alter sequence s restart with 5;
select nextval('s');

-- More subtransactions than a page of transaction status holds, committed and aborted. Images are
-- not written meanwhile, or the log would grow by a page for each.
set wal_consistency_checking = '';
create table many(i int);
do $$ begin
  for i in 1..34000 loop
    begin insert into many values (i); exception when others then null; end;
  end loop;
end $$;
begin;
do $$ begin
  for i in 1..1500 loop
    begin insert into many values (i); exception when others then null; end;
  end loop;
end $$;
rollback;
reset wal_consistency_checking;
do $$ begin
  for i in 1..300 loop
    begin insert into many values (1 / (i % 3)); exception when others then null; end;
  end loop;
end $$;
