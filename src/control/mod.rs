//! (room control)
