//! pg-redo
