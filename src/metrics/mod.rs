//! (room metrics)
