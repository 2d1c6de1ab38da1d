//! Bytes to messages and back. Resumable at any byte; never panics on input, whoever sent it.
//! May use `base`, httparse and memchr; knows no time, no policy, no fleet, and logs nothing.

pub mod json;

pub mod h1;

pub mod sse;

pub mod event;

pub mod splice;

pub mod openai;

pub mod dialect;

pub mod prefix;
