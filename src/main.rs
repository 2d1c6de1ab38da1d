//! The `narwhal` binary: allocator, arguments, exit code.

fn main() {}
