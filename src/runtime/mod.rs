//! (room runtime)
