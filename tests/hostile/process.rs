//! What the kernel says of a process, as proc(5) tells it, and limits set on it while it runs.

use std::fs;
use std::process::Command;
use std::time::Duration;

/// Resident memory, in bytes.
pub fn resident_bytes(id: u32) -> u64 {
    status_kib(id, "VmRSS:") << 10
}

/// Address space, in bytes.
pub fn address_bytes(id: u32) -> u64 {
    status_kib(id, "VmSize:") << 10
}

fn status_kib(id: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number
        .and_then(|text| text.parse().ok())
        .expect("a number of KiB")
}

/// Descriptors that are open.
pub fn descriptors(id: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{id}/fd")).expect("it runs");
    open.count()
}

/// Time on a core so far, in the kernel and outside; in ticks of 10 ms.
pub fn cpu(id: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Fields 14 and 15; the first one here is the third.
    let ticks: u64 = [11, 12]
        .map(|n| fields[n].parse::<u64>().expect("ticks"))
        .iter()
        .sum();
    Duration::from_millis(10 * ticks)
}

/// Sets a limit of a running process by util-linux's `prlimit`, as in `--nofile=64:64`. False when there is no such command.
pub fn limit(id: u32, what: &str) -> bool {
    let mut command = Command::new("prlimit");
    let set = command.args(["--pid", &id.to_string(), what]).status();
    match set {
        Ok(status) => {
            assert!(status.success(), "prlimit {what}");
            true
        }
        Err(why) => {
            eprintln!("skipped: prlimit: {why}");
            false
        }
    }
}
