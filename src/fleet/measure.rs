//! Measuring engines: which points a sweep visits, what a decode point is worth, and the curves that fit the points. The part of
//! `narwhal profile` that needs no engine; requests, clock and files are the command's.

pub mod fit;

pub mod sweep;

pub mod window;
