//! (room stub)
