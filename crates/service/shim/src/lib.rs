//! The page shim: `libstrandline_shim.so`, loaded by `LD_PRELOAD` into every process of a stock
//! PostgreSQL server, makes a data directory of sparse stubs look whole.

#![allow(unsafe_code)]

pub mod attach;
pub mod blocks;
pub mod endpoint;
pub mod evict;
pub mod fds;
pub mod fetch;
pub mod fill;
pub mod governed;
pub mod interposed;
pub mod local_file;
pub mod path;
pub mod postgres;
pub mod readahead;
pub mod real;
pub mod report;
pub mod requests;
pub mod session;
pub mod target;
