//! (room path)

pub mod assemble;
