//! kill_test
