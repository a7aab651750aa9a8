//! log-server
