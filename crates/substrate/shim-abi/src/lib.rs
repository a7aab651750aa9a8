//! What the page shim shares with the rest of Strandline: the **map file** through which the compute
//! manager tells it which blocks are still in storage, and the **page wire**, the protocol by which it
//! fetches them.
//!
//! **Invariant.** Both are fixed layouts of little-endian integers with a magic and a version in front,
//! because the two sides are separate binaries: a shim that misread a block's state would hand
//! PostgreSQL zeros for a page, or overwrite a page that PostgreSQL wrote.
//!
//! Depends on nothing but `libc`; outside [`builder`] it allocates nothing and starts no thread: it is
//! loaded into every PostgreSQL process.
//!
//! UNSAFETY: a map file is memory shared between processes; [`view`] maps it and hands out references
//! to its atomics after checking that every offset lies inside the mapping.

#![allow(unsafe_code)] // Shared memory cannot be had without it; confined to `view`.

pub mod builder;
pub mod map;
pub mod view;
pub mod wire;
