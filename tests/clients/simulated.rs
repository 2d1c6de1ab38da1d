//! `narwhal engine` as a process of its own: engines whose words tell whether one is lost, doubled or out of place.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::json;

use super::client::PATIENCE;
use super::world::{Fleet, Setup, World};

/// The model of every fleet here, as the recorded engines call theirs.
pub const MODEL: &str = "tiny";

/// Engines of one process. They end when this is dropped.
pub struct Simulated {
    child: Child,
    pub addresses: Vec<SocketAddr>,
}

impl Simulated {
    pub fn start(count: usize, driver: &str) -> Simulated {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narwhal"));
        command.args(["engine", "--model", MODEL, "--driver", driver]);
        // Slow enough that parallel streams are mixed.
        command.args(["--ttft-ms", "2", "--tpot-ms", "1"]);
        for _ in 0..count {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("engines start");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| tell.send(line))
        });
        let mut engines = Simulated {
            child,
            addresses: Vec::new(),
        };
        while engines.addresses.len() < count {
            let line = told.recv_timeout(PATIENCE).expect("an engine's line");
            let (_, address) = line.split_once("http://").expect("its address");
            engines.addresses.push(address.parse().expect("an address"));
        }
        engines
    }

    /// A router in front of two for each leg.
    pub fn routed(setup: Setup) -> (World, Simulated) {
        let mut fleet = fleet(&["prefill", "prefill", "decode", "decode"]);
        let engines = Simulated::start(4, setup.driver);
        for (n, address) in engines.addresses.iter().enumerate() {
            fleet.file["engines"][n]["url"] = json!(format!("http://{address}"));
        }
        (World::start(setup, &fleet), engines)
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Engines of these roles, of this file's model.
pub fn fleet(roles: &[&str]) -> Fleet {
    let mut fleet = Fleet::new(roles);
    fleet.file["model"] = json!(MODEL);
    fleet
}
