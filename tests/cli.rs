//! The binary as a person meets it: help, exit codes, messages, and the commands that serve, on real sockets.
//!
//! Everything here starts the real program and reads what it writes. Ports are the kernel's choice, every wait has a deadline.

#[path = "cli/child.rs"]
mod child;
#[path = "cli/demo.rs"]
mod demo;
#[path = "cli/driver.rs"]
mod driver;
#[path = "cli/engine.rs"]
mod engine;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/http.rs"]
mod http;
#[path = "cli/journal.rs"]
mod journal;
#[path = "cli/profile.rs"]
mod profile;
#[path = "cli/seccomp.rs"]
mod seccomp;
#[path = "cli/serve.rs"]
mod serve;
#[path = "cli/topology.rs"]
mod topology;
#[path = "cli/usage.rs"]
mod usage;
