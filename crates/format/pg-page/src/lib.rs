//! pg-page
