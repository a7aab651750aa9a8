-- In a database that was made by copying another.
create table own(id int primary key, v text);
insert into own select i, md5(i::text) from generate_series(1, 500) i;
delete from own where id % 2 = 0;
vacuum (freeze) own;
vacuum (freeze) pg_class;
update own set v = 'x' where id < 100;
