//! The real binary as a child: its lines as they come, its end, and signals. Nothing waits without a deadline, and nothing
//! outlives its test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How long anything may take that must happen. A busy machine is slow, a hanging program is never done.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, in an environment that says nothing to it.
pub fn narwhal(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narwhal"));
    command.args(args);
    for name in ["NARWHAL_LOG", "MONOIO_FORCE_LEGACY_DRIVER"] {
        command.env_remove(name);
    }
    command
}

/// How a command ended, and all it wrote.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command that ends by itself.
pub fn run(args: &[&str]) -> Ended {
    Child::start(narwhal(args)).end()
}

pub struct Child {
    id: u32,
    out: Lines,
    err: Lines,
    exit: Receiver<ExitStatus>,
    gone: bool,
}

impl Child {
    pub fn start(mut command: Command) -> Child {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let out = Lines::of(child.stdout.take().expect("it is piped"));
        let err = Lines::of(child.stderr.take().expect("it is piped"));
        let id = child.id();
        let (send, exit) = mpsc::channel();
        thread::spawn(move || send.send(child.wait().expect("it is our child")));
        let gone = false;
        Child {
            id,
            out,
            err,
            exit,
            gone,
        }
    }

    /// The next line of standard output that holds `text`.
    pub fn out_line(&mut self, text: &str) -> String {
        match self.out.find(text) {
            Some(line) => line,
            None => panic!(
                "no line with {text:?} in:\n{}\nerrors:\n{}",
                self.out.seen,
                self.err.rest(Duration::from_millis(100))
            ),
        }
    }

    /// The next line of standard error that holds `text`.
    pub fn err_line(&mut self, text: &str) -> String {
        match self.err.find(text) {
            Some(line) => line,
            None => panic!("no line with {text:?} in:\n{}", self.err.seen),
        }
    }

    /// `TERM`, `INT`, `KILL`.
    pub fn signal(&self, name: &str) {
        // The shell's own `kill`, so that no package is needed.
        let line = format!("kill -{name} {}", self.id);
        let sent = Command::new("sh").args(["-c", &line]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{line}");
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        let status = self.exit.recv_timeout(PATIENCE);
        self.gone = status.is_ok();
        let (out, err) = (self.out.rest(PATIENCE), self.err.rest(PATIENCE));
        let status = status.unwrap_or_else(|_| panic!("does not end; it wrote:\n{out}{err}"));
        let code = status.code();
        Ended { code, out, err }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.gone && self.exit.try_recv().is_err() {
            self.signal("KILL");
        }
    }
}

/// The address in `http://A:P` within a line.
pub fn address(line: &str) -> SocketAddr {
    let found = line.split_once("http://").and_then(|(_, rest)| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '/');
        let text = &rest[..end.unwrap_or(rest.len())];
        text.trim_end_matches(':').parse().ok()
    });
    found.unwrap_or_else(|| panic!("no address in {line:?}"))
}

/// Lines of a pipe, read by a thread, so that the child never waits for us.
struct Lines {
    more: Receiver<String>,
    seen: String,
}

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Lines {
        let (send, more) = mpsc::channel();
        let read = move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        };
        thread::spawn(read);
        let seen = String::new();
        Lines { more, seen }
    }

    fn find(&mut self, text: &str) -> Option<String> {
        loop {
            let line = self.more.recv_timeout(PATIENCE).ok()?;
            self.seen.push_str(&line);
            self.seen.push('\n');
            if line.contains(text) {
                return Some(line);
            }
        }
    }

    /// Everything up to the end of the pipe.
    fn rest(&mut self, patience: Duration) -> String {
        loop {
            match self.more.recv_timeout(patience) {
                Ok(line) => {
                    self.seen.push_str(&line);
                    self.seen.push('\n');
                }
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {
                    return self.seen.clone();
                }
            }
        }
    }
}
