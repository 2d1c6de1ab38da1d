//! A router process with scripted engines behind it, and what every test asks of it.
//!
//! One [`World`] is one `narwhal serve` on a port the kernel chose, with a directory of its own; both go when it is dropped.
//! Invariant: nothing here waits by time alone: whatever is awaited is polled, up to a deadline that fails the test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use narwhal::runtime::boot::{Driver, DriverChoice, choose_driver};
use serde_json::{Value, json};

use super::client::{self, Answer, Client, PATIENCE};
use super::engine::{Engines, lock};
use super::front::{Front, How};

/// How a router is run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub driver: &'static str,
    pub shards: usize,
}

impl Setup {
    pub const fn new(driver: &'static str, shards: usize) -> Setup {
        Setup { driver, shards }
    }

    /// Every driver of this build that this machine allows, with one shard and with two.
    pub fn all() -> Vec<Setup> {
        drivers()
            .flat_map(|driver| [1, 2].map(|shards| Setup::new(driver.name(), shards)))
            .collect()
    }
}

/// Without io_uring here, epoll is all there is to test. `NARWHAL_DRIVER` narrows it to one.
fn drivers() -> impl Iterator<Item = Driver> {
    let only = std::env::var("NARWHAL_DRIVER").ok();
    let tried = DriverChoice::NAMED
        .iter()
        .map(|choice| choose_driver(*choice));
    let here = tried.filter_map(|tried| match tried {
        Ok((driver, _)) => Some(driver),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    });
    here.filter(move |driver| only.as_ref().is_none_or(|only| only == driver.name()))
}

/// Runs a test on every driver, with one shard and with two.
pub fn everywhere(test: impl Fn(Setup) + Sync) {
    in_each(&Setup::all(), test);
}

/// Runs a test in each of these, at the same time, and says of each failure where it was.
pub fn in_each(setups: &[Setup], test: impl Fn(Setup) + Sync) {
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for &setup in setups {
            let (test, failures) = (&test, &failures);
            scope.spawn(move || {
                if let Err(why) = panic::catch_unwind(AssertUnwindSafe(|| test(setup))) {
                    let words: String = words(&*why).chars().take(1500).collect();
                    lock(failures).push(format!("{setup:?}: {words}"));
                }
            });
        }
    });
    let failures = lock(&failures);
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// What a panic said.
fn words(why: &(dyn std::any::Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| why.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic").to_owned()
}

/// A fleet file. Its engines' ports are written 8101, 8102, …, and replaced by real ones.
#[derive(Clone)]
pub struct Fleet {
    pub file: Value,
    pub profiles: Value,
    pub sglang: bool,
    /// Scripted engines that are there beside those of the file.
    pub spare: usize,
    /// Further arguments of `serve`.
    pub args: Vec<String>,
    /// Further files beside the fleet's, which the fleet names as `@DIR/NAME`.
    pub files: Vec<(&'static str, String)>,
    /// What engines say for as long as they run.
    pub script: Value,
    /// Wait until the router says that it is ready.
    pub await_ready: bool,
    /// What stands before https engines.
    pub front: Option<Arc<Front>>,
    /// Where the engines are, when they are not scripted ones.
    pub ports: Vec<u16>,
    /// What the router's environment has beside ours.
    pub env: Vec<(String, String)>,
}

impl Fleet {
    /// Pinned engines of these roles, without admission control, that are never ejected.
    pub fn new(roles: &[&str]) -> Fleet {
        let engine = |(n, role): (usize, &&str)| {
            json!({
                "iid": format!("e{n}"), "url": format!("http://127.0.0.1:{}", 8101 + n), "role": role,
                "pin": *role != "both",
            })
        };
        let engines: Vec<Value> = roles.iter().enumerate().map(engine).collect();
        let connector = if roles.contains(&"both") {
            "none"
        } else {
            "nixl"
        };
        Fleet {
            file: json!({
                "schema": "narwhal.fleet", "schema_version": 2, "model": "stub-model", "engines": engines,
                "slo": {"ttft_s": 10.0, "tpot_s": 0.5},
                "serving": {
                    "admission": "open", "retry_budget": 1_000_000, "retry_base_s": 0.01, "retry_cap_s": 0.01,
                },
                "engine": {"connector": connector, "first_token_timeout_s": 10.0},
                "recovery": {"eject_after": 1_000_000, "liveness_every": 0},
            }),
            profiles: Value::Null,
            sglang: false,
            spare: 0,
            args: Vec::new(),
            files: Vec::new(),
            script: json!({}),
            await_ready: true,
            front: None,
            ports: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Two engines for each leg.
    pub fn pairs() -> Fleet {
        Fleet::new(&["prefill", "prefill", "decode", "decode"])
    }

    /// One engine for each leg.
    pub fn pair() -> Fleet {
        Fleet::new(&["prefill", "decode"])
    }

    /// With a key of a group set, as in `("serving", "max_connections", …)`.
    pub fn with(mut self, group: &str, key: &str, value: impl Into<Value>) -> Fleet {
        self.file[group][key] = value.into();
        self
    }

    /// The same engines over https, behind doors of this kind.
    pub fn https(self, how: How) -> Fleet {
        let mut fleet = self.with("engine", "tls_ca_file", "@DIR/ca.pem");
        for engine in fleet.file["engines"].as_array_mut().into_iter().flatten() {
            let url = engine["url"].as_str().expect("a url");
            engine["url"] = json!(url.replace("http://", "https://"));
        }
        fleet.front = Some(Front::new(how));
        fleet
    }

    /// How many scripted ones it takes.
    fn engines(&self) -> usize {
        let all = self.file["engines"].as_array().map_or(0, Vec::len);
        if self.ports.is_empty() {
            all + self.spare
        } else {
            0
        }
    }
}

/// See the head of this file.
pub struct World {
    pub addr: SocketAddr,
    pub engines: Engines,
    child: Mutex<Child>,
    dir: PathBuf,
    ports: Vec<u16>,
    said: Arc<Mutex<String>>,
    front: Option<Arc<Front>>,
}

impl World {
    pub fn start(setup: Setup, fleet: &Fleet) -> World {
        let model = fleet.file["model"].as_str().expect("a model");
        let engines = Engines::start(fleet.engines(), model, fleet.sglang);
        engines.script_for_good(&fleet.script);
        static WORLDS: AtomicUsize = AtomicUsize::new(0);
        let number = WORLDS.fetch_add(1, Ordering::SeqCst);
        let dir = format!("narwhal-e2e-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        fs::create_dir_all(&dir).expect("a directory");
        for (name, content) in &fleet.files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, content).expect("a file");
        }
        let ports = doors(&dir, fleet, &engines);
        let file = write_fleet(&dir, fleet, &ports);
        let mut command = Command::new(env!("CARGO_BIN_EXE_narwhal"));
        command
            .arg("serve")
            .arg("--fleet")
            .arg(file)
            .args(["--listen", "127.0.0.1:0", "--driver", setup.driver])
            .args(["--shards", &setup.shards.to_string()])
            .args(cpu(setup, number))
            .args(
                fleet
                    .args
                    .iter()
                    .map(|arg| arg.replace("@DIR", &dir.display().to_string())),
            )
            .envs(fleet.env.iter().cloned())
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the router starts");
        let said = Arc::new(Mutex::new(String::new()));
        let stderr = child.stderr.take().expect("its messages");
        let (tell, told) = mpsc::channel();
        let kept = Arc::clone(&said);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some((_, addr)) = line.split_once("listening on http://") {
                    let _ = tell.send(addr.trim().parse());
                }
                *lock(&kept) += &(line + "\n");
            }
        });
        let addr = told.recv_timeout(PATIENCE);
        let mut world = World {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            engines,
            child: Mutex::new(child),
            dir,
            ports,
            said,
            front: fleet.front.clone(),
        };
        world.addr = match addr {
            Ok(Ok(addr)) => addr,
            other => panic!("no address ({other:?}):\n{}", world.said()),
        };
        if fleet.await_ready {
            world.until("ready", |world| {
                world.ask(&client::get("/ready")).status == Some(200)
            });
        }
        world
    }

    /// Everything the router wrote to stderr, and how it ended if it did.
    pub fn said(&self) -> String {
        let ended = lock(&self.child).try_wait().ok().flatten();
        let ended = ended.map_or_else(String::new, |status| format!("(it ended: {status})"));
        lock(&self.said).clone() + &ended
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.addr)
    }

    /// One request on a connection of its own.
    pub fn ask(&self, request: &[u8]) -> Answer {
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(&client::post(path, body))
    }

    pub fn state(&self) -> Value {
        let mut client = self.connect();
        client.send(&client::get("/narwhal/state"));
        let answer = client.answer();
        let how = if client.eof { "closed" } else { "silent" };
        assert_eq!(
            answer.status,
            Some(200),
            "{how}: {}\n{}",
            answer.text(),
            self.said()
        );
        answer.json()
    }

    /// The state once nothing is in flight: every gauge is 0, and the account adds up.
    pub fn at_rest(&self) -> Value {
        let mut state = Value::Null;
        let mut busy = Vec::new();
        let rested = poll(PATIENCE, || {
            state = self.state();
            busy = gauges(&state);
            busy.is_empty()
        });
        assert!(rested, "not at rest: {busy:?}\n{}", self.said());
        assert_eq!(number(&state, "/offered"), ends(&state), "the account");
        state
    }

    /// Waits for something that must come true.
    pub fn until(&self, what: &str, mut come: impl FnMut(&World) -> bool) {
        let came = poll(PATIENCE, || come(self));
        assert!(came, "{what} did not come about\n{}", self.said());
    }

    /// Waits until engines have seen `count` legs of a kind.
    pub fn until_leg(&self, leg: &str, count: usize) {
        self.until(&format!("{leg} leg {count}"), |world| {
            world.engines.legs(leg).len() >= count
        });
    }

    /// Writes a file beside the fleet's.
    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.dir.join(name), content).expect("a file");
    }

    /// Writes the fleet file anew, and its profiles.
    pub fn rewrite(&self, fleet: &Fleet) {
        write_fleet(&self.dir, fleet, &self.ports);
    }

    /// Reads a file beside the fleet's.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).expect("a file")
    }

    /// Where a file beside the fleet's is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn make_folder(&self, name: &str) {
        fs::create_dir(self.dir.join(name)).expect("a folder");
    }

    /// With all that is in it.
    pub fn remove_folder(&self, name: &str) {
        fs::remove_dir_all(self.dir.join(name)).expect("a folder");
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        matches!(lock(&self.child).try_wait(), Ok(None))
    }

    /// Sends a signal, as an operator would.
    pub fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.args(["-s", name, &self.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{name}");
    }

    /// The exit code once the process has ended by itself.
    pub fn exit_code(&self) -> Option<i32> {
        let mut status = None;
        let ended = poll(PATIENCE, || {
            status = lock(&self.child).try_wait().ok().flatten();
            status.is_some()
        });
        assert!(ended, "the router does not end\n{}", self.said());
        status.and_then(|status| status.code())
    }

    /// The addresses that it said after these words.
    pub fn addresses(&self, words: &str) -> Vec<SocketAddr> {
        let said = self.said();
        let rest = said.lines().filter_map(|line| line.split_once(words));
        rest.filter_map(|(_, address)| address.trim().parse().ok())
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let said = self.said();
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            let tail = said.len().saturating_sub(4000);
            eprintln!("the router said:\n{}", said.get(tail..).unwrap_or(&said));
        }
        let _ = fs::remove_dir_all(&self.dir);
        if let Some(front) = &self.front {
            front.close();
        }
    }
}

/// Polls until it holds, at most for `patience`.
pub fn poll(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        // A pause between two looks; nobody wakes it.
        thread::park_timeout(Duration::from_millis(2));
    }
}

pub fn number(state: &Value, pointer: &str) -> u64 {
    let found = state.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {pointer} in the state"))
}

/// How often an outcome had this reason.
pub fn reason(state: &Value, outcome: &str, reason: &str) -> u64 {
    number(state, &format!("/outcome_reasons/{outcome}/{reason}"))
}

/// The sum of all ends.
pub fn ends(state: &Value) -> u64 {
    const ENDS: [&str; 7] = [
        "/served",
        "/failed",
        "/expired",
        "/cancelled",
        "/invalid_requests",
        "/admission/rejected",
        "/admission/refused",
    ];
    ENDS.iter().map(|end| number(state, end)).sum()
}

/// Clients' connections, that of the one who asks among them.
pub fn open_connections(world: &World) -> u64 {
    let state = world.state();
    let shards = state["shards"].as_array().expect("shards").iter();
    shards.map(|shard| number(shard, "/connections/open")).sum()
}

/// The gauges that are not 0.
fn gauges(state: &Value) -> Vec<String> {
    let mut pointers: Vec<String> = [
        "/admission/inflight",
        "/admission/queued",
        "/admission/retained",
        "/admission/phase_waiting/prefill",
        "/admission/phase_waiting/decode",
        "/serving/inflight",
        "/serving/streams_active",
        "/pools/legs_open",
    ]
    .map(str::to_owned)
    .into();
    for iid in state["resident"]
        .as_object()
        .into_iter()
        .flat_map(|o| o.keys())
    {
        for member in ["prefill", "decode", "outstanding_tokens"] {
            pointers.push(format!("/resident/{iid}/{member}"));
        }
    }
    for shard in 0..state["shards"].as_array().map_or(0, Vec::len) {
        for member in ["inflight", "queued", "streams_active"] {
            pointers.push(format!("/shards/{shard}/{member}"));
        }
    }
    pointers.retain(|pointer| number(state, pointer) != 0);
    pointers
}

/// Routers of one shard take turns on the cores; the plan would put them all on the first.
fn cpu(setup: Setup, number: usize) -> Vec<String> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    match cores.get(number % cores.len().max(1)) {
        Some(core) if setup.shards == 1 => vec!["--cpus".to_owned(), core.id.to_string()],
        _ => Vec::new(),
    }
}

/// Where the router finds each engine, and whom it is to trust there.
fn doors(dir: &Path, fleet: &Fleet, engines: &Engines) -> Vec<u16> {
    let Some(front) = &fleet.front else {
        return [&engines.ports[..], &fleet.ports].concat();
    };
    fs::write(dir.join("ca.pem"), &front.authority).expect("an authority");
    engines.ports.iter().map(|port| front.open(*port)).collect()
}

/// The fleet file, and the profiles it names, with real ports and paths.
fn write_fleet(dir: &Path, fleet: &Fleet, ports: &[u16]) -> PathBuf {
    let real = |text: String| {
        let mut text = text.replace("@DIR", &dir.display().to_string());
        for (n, port) in ports.iter().enumerate() {
            let stand_in = 8101 + n;
            text = text
                .replace(&format!(":{stand_in}\""), &format!(":{port}\""))
                .replace(
                    &format!("\"bootstrap_port\":{stand_in}"),
                    &format!("\"bootstrap_port\":{port}"),
                );
        }
        text
    };
    if !fleet.profiles.is_null() {
        let profiles =
            json!({"schema": "narwhal.profiles", "schema_version": 1, "profiles": fleet.profiles});
        fs::write(dir.join("profiles.json"), profiles.to_string()).expect("profiles");
    }
    let file = dir.join("fleet.json");
    fs::write(&file, real(fleet.file.to_string())).expect("a fleet file");
    file
}
