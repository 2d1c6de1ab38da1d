//! (room config)
