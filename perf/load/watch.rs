//! What other processes have used so far, as Linux tells it in proc(5).
//!
//! CPU is the sum of `schedstat` over all threads, in nanoseconds: ticks are too coarse for a batch of a second. The part of it spent
//! outside the kernel is known in ticks only. A thread that ended is missing, so what a proxy ends within a batch is not counted.

use std::fs;

use serde_json::{Value, json};

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    cpu_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
    rss_kib: u64,
}

impl Used {
    pub fn of(pid: u32) -> Used {
        let (user_ticks, system_ticks) = ticks(pid);
        Used {
            cpu_ns: cpu_ns(pid),
            user_ticks,
            system_ticks,
            rss_kib: rss_kib(pid),
        }
    }

    /// What was used between two looks.
    pub fn report(before: Used, after: Used) -> Value {
        json!({
            "cpu_ns": after.cpu_ns.saturating_sub(before.cpu_ns),
            "user_ticks": after.user_ticks - before.user_ticks,
            "system_ticks": after.system_ticks - before.system_ticks,
            "rss_kib": [before.rss_kib, after.rss_kib],
        })
    }
}

fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let of_task = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(of_task).sum()
}

/// Fields 14 and 15 of `stat`; the name may hold anything, so counted from its closing parenthesis.
fn ticks(pid: u32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |n: usize| rest.split_ascii_whitespace().nth(n - 3);
    let number = |n| field(n).and_then(|text| text.parse().ok()).unwrap_or(0);
    (number(14), number(15))
}

fn rss_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let mut lines = rollup.lines();
    let line = lines.find_map(|line| line.strip_prefix("Rss:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}
