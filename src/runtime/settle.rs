//! What a router asks of the kernel for itself: a shard's thread its cores, the node of its memory and no signals, the process its
//! descriptors.
//!
//! Nothing of it is needed to serve: what the kernel refuses is told and survived.

use std::fmt;
use std::io;

use core_affinity::CoreId;

use super::topology::Place;
use super::topology::list::CPU_ID_MAX;

/// What the kernel refused a shard's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// To be pinned to its core, or kept within its cores.
    Cores,
    /// To have its memory from its node; a container's seccomp profile may forbid the call.
    Memory,
}

/// Takes a place in: what it says of cores and of memory, as far as the kernel lets us.
pub fn take(place: &Place) -> Vec<Refused> {
    let cores = match (place.cpu, &place.within) {
        (Some(id), _) => core_affinity::set_for_current(CoreId { id }),
        (None, Some(cpus)) => stay_within(cpus.ids()).is_ok(),
        (None, None) => true,
    };
    let memory = place.memory.is_none_or(|node| prefer_node(node).is_ok());
    let refused = [(cores, Refused::Cores), (memory, Refused::Memory)];
    let refused = refused.into_iter().filter(|(done, _)| !done);
    refused.map(|(_, what)| what).collect()
}

/// Runs on these cores only.
#[expect(unsafe_code, reason = "std has no call for a thread's cores")]
fn stay_within(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a set is an array of integers, for which zeroes are a value, and that of no cores.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu <= CPU_ID_MAX) {
        // SAFETY: the set has a bit for every core up to the last one that is let through here.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: the set lives through the call, and its size is its own; 0 is the calling thread.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Pages that this thread touches first come from the node while it has any (`MPOL_PREFERRED`: a full node means slower memory, and not
/// the end of the process). Does not move what is there.
#[expect(unsafe_code, reason = "neither std nor libc wraps set_mempolicy")]
fn prefer_node(node: usize) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask: [libc::c_ulong; NODES_MAX / BITS] = [0; NODES_MAX / BITS];
    let word = mask.get_mut(node / BITS);
    *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % BITS);
    // One more than there are bits: the kernel takes one off (get_nodes in mm/mempolicy.c).
    let bits = NODES_MAX + 1;
    // SAFETY: the kernel reads as many bits as the mask has, and only during the call.
    let failed = unsafe {
        let mode = libc::c_long::from(libc::MPOL_PREFERRED);
        libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits)
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Nodes that Linux can be built for (`CONFIG_NODES_SHIFT`, 10 at most).
const NODES_MAX: usize = 1024;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Cores => "its cores",
            Refused::Memory => "memory of its node",
        })
    }
}

/// How many descriptors the process may have open, after it was given all that it may give itself: shells and service managers
/// begin with 1024, and a stream takes two or three.
#[expect(unsafe_code, reason = "std has no call for the limits of a process")]
pub fn descriptors() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the struct, which is a live local, and only during the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let all = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    // SAFETY: the kernel reads the struct, which is a live local, and only during the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const all) } {
        0 => Ok(all.rlim_cur),
        _ => Ok(limit.rlim_cur),
    }
}

/// Signals go to the control thread: on a shard they would only interrupt system calls.
/// What a fault raises on the thread itself stays deliverable.
#[expect(unsafe_code, reason = "std has no call for a thread's signal mask")]
pub fn block_signals() {
    const FAULTS: [i32; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGABRT,
        libc::SIGTRAP,
    ];
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that the later calls read; the old mask is not asked for; all pointers
    // are to a live local.
    let failed = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut())
    };
    debug_assert_eq!(failed, 0, "the arguments are valid");
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;
    use crate::runtime::topology::Plan;

    /// A place like one of a plan's, taken by a thread of its own, which then says something.
    fn settled<T: Send + 'static>(
        change: impl FnOnce(&mut Place),
        then: fn() -> T,
    ) -> (Vec<Refused>, T) {
        let mut place = Plan::floating(1).places.remove(0);
        change(&mut place);
        let thread = thread::spawn(move || (take(&place), then()));
        thread.join().expect("no panic")
    }

    fn allowed() -> String {
        let status = fs::read_to_string("/proc/thread-self/status").expect("ours");
        let mut lines = status.lines();
        let found = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        found.expect("a mask").trim().to_owned()
    }

    // proves R-SHD-1
    #[test]
    fn a_thread_stays_within_its_cores() {
        let mask = core_affinity::get_core_ids().expect("a mask");
        let cpu = mask.last().expect("a core").id;
        let within = cpu.to_string().parse().ok();
        let row = settled(|place| place.within = within, allowed);
        assert_eq!(row, (vec![], cpu.to_string()));
        let row = settled(|_| {}, allowed);
        assert_eq!(row, (vec![], allowed()));
        let nowhere = "1023".parse().ok();
        let row = settled(|place| place.within = nowhere, allowed);
        assert_eq!(row, (vec![Refused::Cores], allowed()));
    }

    #[test]
    fn descriptors_are_all_that_may_be_had() {
        let had = descriptors().expect("a limit");
        let limits = fs::read_to_string("/proc/self/limits").expect("ours");
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let mut numbers = line.expect("a line").split_ascii_whitespace().skip(3);
        let both = [numbers.next(), numbers.next()];
        let had = had.to_string();
        assert_eq!(both, [Some(had.as_str()); 2]);
    }

    // proves R-SHD-2
    #[test]
    fn memory_comes_from_the_node() {
        // The policy of the thread heads every mapping that has none of its own.
        let policy = || fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
        let (refused, maps) = settled(|place| place.memory = Some(0), policy);
        if refused.is_empty() && !maps.is_empty() {
            assert!(maps.contains(" prefer:0 "), "{maps}");
            let (_, maps) = settled(|_| {}, policy);
            assert!(!maps.contains(" prefer:0 "), "{maps}");
        } else {
            eprintln!("skipped: no memory policies here ({refused:?})");
        }
        // Nodes that are not there.
        for node in [1023, 1024, usize::MAX] {
            let (refused, ()) = settled(|place| place.memory = Some(node), || ());
            assert_eq!(refused, [Refused::Memory], "{node}");
        }
    }
}
