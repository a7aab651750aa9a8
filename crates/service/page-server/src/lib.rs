//! page-server
