//! A kernel that has no io_uring, or does not allow it: a filter on the child, which denies the one call that makes a ring.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// From `linux/audit.h` on, the number of `io_uring_setup` is the same on every architecture.
const IO_URING_SETUP: u32 = 425;

/// Makes `io_uring_setup` of `command` fail with `errno`.
pub fn deny_io_uring(command: &mut Command, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // The number of the call is the first word of what a filter sees.
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, IO_URING_SETUP)
        },
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: `prctl` is called with the argument types of its manual page; `program` and the filter that it points
        // to are locals that live through the call, and the kernel copies them.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER as u64,
                    &program as *const libc::sock_fprog,
                ) != 0
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing; its captures are plain data.
    unsafe {
        command.pre_exec(install);
    }
}
