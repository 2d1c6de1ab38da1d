//! Which way shards ask the kernel, where io_uring is refused and where it is not there.

use std::process::Command;

use crate::child::{Child, address, narwhal};
use crate::files::fleet_file;
use crate::http;
use crate::seccomp::deny_io_uring;

fn serve(driver: &str, errno: i32) -> Command {
    let fleet = fleet_file("driver", "json", crate::serve::FLEET);
    let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0", "--driver", driver]);
    command.arg("--fleet").arg(fleet);
    deny_io_uring(&mut command, errno);
    command
}

// proves R-SHD-3, R-CLI-1
#[test]
fn where_io_uring_is_denied_it_is_refused_by_name_and_auto_runs_on_epoll() {
    for (errno, name) in [(libc::EPERM, "EPERM"), (libc::ENOSYS, "ENOSYS")] {
        let ended = Child::start(serve("io_uring", errno)).end();
        assert_eq!(ended.code, Some(1), "{name}: {}", ended.err);
        let told = "narwhal: driver: io_uring is not available here";
        assert!(ended.err.contains(told), "{name}: {}", ended.err);

        let mut child = Child::start(serve("auto", errno));
        child.err_line("io_uring is not available, running on epoll");
        child.err_line("on epoll");
        let at = address(&child.err_line("listening on http://"));
        assert_eq!(http::get(at, "/health").status, 200);
        child.signal("INT");
        // The second signal does not wait for the drain.
        child.err_line("draining");
        child.signal("INT");
        assert_eq!(child.end().code, Some(0), "{name}");
    }
}

// proves R-SHD-3
#[test]
fn a_driver_that_is_named_is_used_and_said() {
    let fleet = fleet_file("named-driver", "json", crate::serve::FLEET);
    let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0", "--driver", "epoll"]);
    command.arg("--fleet").arg(fleet);
    let mut child = Child::start(command);
    child.err_line("shards on epoll");
    child.err_line("listening on http://");
}
