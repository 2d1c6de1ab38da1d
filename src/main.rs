//! The `narwhal` binary: allocator, arguments, exit code.

use std::process::ExitCode;

/// Short-lived buffers of many sizes on pinned threads: freeing on the thread that allocated is mimalloc's fast path.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    narwhal::cli::run()
}
