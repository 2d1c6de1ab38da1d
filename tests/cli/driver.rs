//! Which way shards ask the kernel, where io_uring is refused and where it is not there.

use std::process::Command;

use narwhal::runtime::boot::{DriverChoice, choose_driver};
use serde_json::json;

use crate::child::{Child, address, narwhal};
use crate::files::fleet_file;
use crate::http;
use crate::seccomp::deny_io_uring;

fn serve(driver: &str, errno: i32) -> Command {
    serve_fleet(driver, errno, crate::serve::FLEET)
}

fn serve_fleet(driver: &str, errno: i32, text: &str) -> Command {
    let fleet = fleet_file("driver", "json", text);
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

        let mut engine = Child::start(narwhal(&[
            "engine",
            "--listen",
            "127.0.0.1:0",
            "--model",
            "m",
        ]));
        let engine_at = address(&engine.out_line("on http://"));
        let text = crate::serve::FLEET.replace("127.0.0.1:9", &engine_at.to_string());
        let mut child = Child::start(serve_fleet("auto", errno, &text));
        child.err_line("io_uring is not available, running on epoll");
        child.err_line("on epoll");
        let at = address(&child.err_line("listening on http://"));
        assert_eq!(http::get(at, "/health").status, 200);
        for stream in [true, false] {
            let ask = json!({"prompt": [1, 2, 3], "max_tokens": 9, "stream": stream});
            let answer = http::post(at, "/v1/completions", &ask);
            if stream {
                assert_eq!(answer.events().len(), 9, "{name}");
            } else {
                let counted = &answer.json()["usage"]["completion_tokens"];
                assert_eq!(counted, &json!(9), "{name}");
            }
        }
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
    for driver in DriverChoice::NAMED {
        let driver = match choose_driver(*driver) {
            Ok((driver, _)) => driver.name(),
            Err(why) => {
                eprintln!("skipped: {why}");
                continue;
            }
        };
        let fleet = fleet_file("named-driver", "json", crate::serve::FLEET);
        let mut command = narwhal(&["serve", "--listen", "127.0.0.1:0", "--driver", driver]);
        command.arg("--fleet").arg(fleet);
        let mut child = Child::start(command);
        child.err_line(&format!("shards on {driver}"));
        child.err_line("listening on http://");
    }
}

/// The word is known to every build, so that one without it can say what is missing.
// proves R-SHD-1, R-SHD-3
#[test]
fn glommio_is_refused_by_name_where_it_cannot_be() {
    let here = cfg!(feature = "rt-glommio");
    let help = narwhal(&["serve", "--help"]).output().expect("it runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert_eq!(help.contains("io_uring|epoll|glommio"), here, "{help}");
    let told = if here {
        "narwhal: driver: glommio is not available here: "
    } else {
        "narwhal: driver: glommio is not in this build, which needs the feature rt-glommio"
    };
    for errno in [libc::EPERM, libc::ENOSYS] {
        let ended = Child::start(serve("glommio", errno)).end();
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        assert!(ended.err.contains(told), "{}", ended.err);
    }
}

/// glommio asks for 512 KiB of locked memory, and containers often have 64.
// proves R-SHD-1
#[cfg(feature = "rt-glommio")]
#[test]
fn a_limit_on_locked_memory_is_raised_or_told() {
    if let Err(why) = choose_driver(DriverChoice::Glommio) {
        eprintln!("skipped: {why}");
        return;
    }
    for (limit, hard) in [("-S -l", false), ("-l", true)] {
        let fleet = fleet_file("memlock", "json", crate::serve::FLEET);
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit {limit} 64 && exec \"$@\""), "sh"])
            .arg(env!("CARGO_BIN_EXE_narwhal"))
            .args(["serve", "--listen", "127.0.0.1:0", "--driver", "glommio"])
            .arg("--fleet")
            .arg(fleet);
        let mut child = Child::start(command);
        if hard && !may_raise_limits() {
            let ended = child.end();
            assert_eq!(ended.code, Some(1), "{}", ended.err);
            let told = "glommio is not available here: locked memory is limited to 64 KiB";
            assert!(ended.err.contains(told), "{}", ended.err);
        } else {
            child.err_line("shards on glommio");
            child.err_line("listening on http://");
        }
    }
}

/// Whether this process has CAP_SYS_RESOURCE.
#[cfg(feature = "rt-glommio")]
fn may_raise_limits() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("ours");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(line.expect("capabilities").trim(), 16);
    held.expect("a number") >> 24 & 1 == 1
}
