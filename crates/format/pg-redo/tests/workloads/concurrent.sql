\set id random(1, 200)
\set id2 random(1, 200)
\set k random(1000, 1060)
\set roll random(1, 10)
begin;
insert into c1(id, v) values (:k, 'spec') on conflict (id) do update set n = c1.n + 1;
end;
insert into c1(id, u, v) values (:k + 100, :k + 100, 'spec') on conflict do nothing;
begin;
insert into c2(r, k) values (:id, :roll);
select count(*) from (select 1 from c1 where id = :id2 for key share) x;
end;
begin;
select count(*) from (select 1 from c1 where id = :id for share) x;
savepoint a;
select nextval('cs');
insert into c2(r, k) values (:id2, :roll);
rollback to a;
end;
update c1 set n = n + 1, v = v || 'x' where id = :id2;
update c1 set v = left(v, 5) where id = :id and length(v) > 60;
delete from c1 where id = :k + 100;
delete from c2 where id in (select id from c2 where k = :roll order by id limit 3);
