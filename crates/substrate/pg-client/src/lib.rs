//! A blocking client of PostgreSQL: simple queries and streaming replication.
