//! pg-proto
