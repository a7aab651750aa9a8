//! page-store
