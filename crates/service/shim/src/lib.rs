//! strandline-shim
