//! log-store
