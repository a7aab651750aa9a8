create table c1(id int primary key, u int unique, v text, n int default 0);
create table c2(id serial primary key, r int references c1(id), k int);
create index c2_k on c2(k);
create sequence cs;
insert into c1 select i, i, 'v', 0 from generate_series(1, 200) i;
