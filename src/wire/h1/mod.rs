//! HTTP/1.1 as bytes, both sides: heads, bodies, and how we write them. RFC 9110, RFC 9112.

pub mod head;

pub mod body;

pub mod encode;
