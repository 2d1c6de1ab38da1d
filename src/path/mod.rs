//! (room path)
