//! What one seed turns on and off, and how far: the fleet and its limits, the network, engines, faults, clients, and what befalls the
//! router. Many features at once hide each other, so each seed has few of them (swarm testing).

use std::sync::Arc;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::units::{Dialect, Role};
use narwhal::config::profiles::Profile as Row;
use narwhal::config::{self, Fleet, Format, Snapshot};
use narwhal::stub::engine::Setup;
use narwhal::stub::profile::Profile;

use crate::faults::{Fault, Rates};
use crate::net::Weather;

/// What engines are, by how often.
const DIALECTS: [Dialect; 8] = [
    Dialect::Vllm,
    Dialect::Vllm,
    Dialect::Vllm,
    Dialect::Vllm,
    Dialect::Vllm,
    Dialect::Sglang,
    Dialect::Sglang,
    Dialect::Openai,
];

#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub shards: usize,
    pub snapshot: Arc<Snapshot>,
    pub engines: Vec<Setup>,
    pub weather: Weather,
    /// Most that a wake-up of a shard comes late.
    pub lag: Duration,
    /// Ready events of one connection come in the runtime's order, not in any.
    pub runtime_order: bool,
    pub clients: usize,
    /// Mean time between arrivals; `None`: bursts.
    pub gap: Option<Duration>,
    pub faults: Rates,
    pub people: People,
    pub chaos: Chaos,
    /// How the fleet is watched, when it is.
    pub watch: Option<Watch>,
    /// How often an engine is taken out of the fleet file, and put back.
    pub reloads: u64,
    /// What the file says, and the file of profiles.
    pub fleet: Fleet,
    pub profiles: Vec<Row>,
    /// When those who are still there leave.
    pub ends_after: Duration,
    pub hook: Option<Hook>,
}

/// What clients may do, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct People {
    pub pipelines: u64,
    pub slow_sender: u64,
    pub slow_reader: u64,
    pub leaves: u64,
    /// Bad requests and other routes.
    pub odd: u64,
    pub http10: u64,
    pub assembled: u64,
    pub long_answers: u64,
}

/// What befalls the router and its engines; each is a count of events, at times of chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    pub flips: u64,
    pub deaths: u64,
    pub outages: u64,
    pub holds: u64,
    pub stalls: u64,
    pub exodus: u64,
    pub storms: u64,
    pub drains: bool,
    /// An engine stands still: it reads and writes nothing, and goes on where it was.
    pub freezes: u64,
    /// An engine takes nothing new for a while: 500, while what runs goes on.
    pub winds_down: u64,
    /// The time of day steps, forwards or back.
    pub steps: u64,
}

/// The control thread's part.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Between passes.
    pub interval: Duration,
    /// Engines that operators start anew.
    pub drains: u64,
    eject_after: u64,
    readmit_every: u64,
    quarantine_s: u64,
}

impl Watch {
    /// From chance of its own, so that fleets that nobody watches are as they would be without this.
    fn new(seed: u64) -> Option<Watch> {
        let mut c = Prng::new(seed ^ 0x7761_7463_6800);
        let c = &mut c;
        on(c, 30).then(|| Watch {
            interval: Duration::from_millis(pick(c, &[20, 200, 1_000])),
            drains: pick(c, &[0, 1, 3]),
            eject_after: pick(c, &[1, 2, 3]),
            readmit_every: pick(c, &[1, 1, 4]),
            quarantine_s: pick(c, &[0, 0, 1]),
        })
    }

    fn section(&self) -> String {
        format!(
            "[recovery]\neject_after = {}\nreadmit_every = {}\nfailure_quarantine_s = {}\n",
            self.eject_after, self.readmit_every, self.quarantine_s
        )
    }
}

/// A fault put into the runtime's part, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// An engine read is handed on twice.
    DoubleRead,
    /// What a short write left over is lost.
    LoseTail,
    /// A client that leaves while its prompt is read takes a seat with it.
    LeakSeat,
    /// A socket whose answer is cut off goes to the pool all the same.
    ParkEarly,
    /// A client's end is not passed on.
    MissLeaving,
}

impl Hook {
    pub const ALL: [Hook; 5] = [
        Hook::DoubleRead,
        Hook::LoseTail,
        Hook::LeakSeat,
        Hook::ParkEarly,
        Hook::MissLeaving,
    ];
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let mut c = Prng::new(seed ^ 0x6e61_7277_6861_6c00);
        let c = &mut c;
        let dialect = pick(c, &DIALECTS);
        let (fleet, roles) = fleet(c, dialect);
        let known = Known::new(seed);
        let watch = Watch::new(seed);
        let recovery = watch.map_or(String::new(), |watch| watch.section());
        let text = format!("{}{fleet}{recovery}", limits(c, dialect, &known));
        let loaded = config::parse("sim.toml", &text, Format::Toml, &|_| None);
        let fleet = loaded.unwrap_or_else(|why| panic!("{why}\n{text}")).fleet;
        let setups = (0..).zip(&roles);
        let setups = setups.map(|(i, role)| Setup {
            dialect,
            role: *role,
            ..setup(c, seed, i)
        });
        let setups = setups.collect();
        let us = Duration::from_micros;
        let snapshot = Snapshot::new(1, fleet.clone());
        let profiles = known.tell(&snapshot, seed);
        Plan {
            seed,
            shards: 1 + c.below(4) as usize,
            snapshot: Arc::new(snapshot.with_profiles(profiles.clone())),
            reloads: reloads(seed),
            fleet,
            profiles,
            engines: setups,
            weather: Weather {
                least: us(pick(c, &[1, 20, 200])),
                jitter: us(pick(c, &[0, 30, 1_000, 20_000])),
                crumbs: on(c, 60),
                room: pick(c, &[1 << 20, 1 << 16, 3_000]),
            },
            lag: us(pick(c, &[0, 5, 200, 5_000])),
            runtime_order: on(c, 60),
            clients: pick(c, &[1, 3, 6, 12, 20]),
            gap: on(c, 70).then(|| us(pick(c, &[100, 5_000, 40_000]))),
            faults: rates(c, dialect),
            people: people(c),
            chaos: more_chaos(seed, chaos(c)),
            watch,
            ends_after: Duration::from_millis(pick(c, &[100, 2_000, 20_000])),
            hook: None,
        }
    }
}

pub fn on(c: &mut Prng, percent: u64) -> bool {
    c.below(100) < percent
}

pub fn pick<T: Copy>(c: &mut Prng, from: &[T]) -> T {
    from[c.below(from.len() as u64) as usize]
}

fn rates(c: &mut Prng, dialect: Dialect) -> Rates {
    let mut rates = Rates::default();
    if on(c, 25) {
        return rates;
    }
    for fault in Fault::ALL {
        if on(c, 25) {
            rates.set(fault, pick(c, &[10, 50, 200]));
        }
    }
    if on(c, 30) {
        rates.set(Fault::ShortIdle, 500);
    }
    if dialect != Dialect::Vllm {
        // Without ids nobody can tell.
        rates.set(Fault::BadIds, 0);
    }
    rates
}

fn people(c: &mut Prng) -> People {
    let mut some = |percent, most: &[u64]| if on(c, percent) { pick(c, most) } else { 0 };
    People {
        pipelines: some(40, &[20, 80]),
        slow_sender: some(40, &[10, 50]),
        slow_reader: some(40, &[10, 50]),
        leaves: some(60, &[10, 40, 90]),
        odd: some(60, &[10, 40]),
        http10: some(30, &[10, 50]),
        assembled: some(80, &[30, 60]),
        long_answers: some(20, &[20, 60]),
    }
}

fn chaos(c: &mut Prng) -> Chaos {
    let mut some = |percent, most: &[u64]| if on(c, percent) { pick(c, most) } else { 0 };
    Chaos {
        flips: some(30, &[2, 10]),
        deaths: some(15, &[1, 2]),
        outages: some(15, &[1, 2]),
        holds: some(15, &[1, 3]),
        stalls: some(25, &[1, 4]),
        exodus: some(20, &[1]),
        storms: some(25, &[1]),
        drains: on(c, 10),
        ..Chaos::default()
    }
}

/// From chance of its own, so that seeds without any of it are as they were before it was thought of.
fn more_chaos(seed: u64, chaos: Chaos) -> Chaos {
    let mut c = Prng::new(seed ^ 0x6672_6f73_7400);
    let mut some = |percent, most: &[u64]| {
        if on(&mut c, percent) {
            pick(&mut c, most)
        } else {
            0
        }
    };
    Chaos {
        freezes: some(12, &[1, 3]),
        winds_down: some(10, &[1, 2]),
        steps: some(5, &[1, 4]),
        ..chaos
    }
}

/// From chance of its own, as above.
fn reloads(seed: u64) -> u64 {
    let mut c = Prng::new(seed ^ 0x7265_6c6f_6164);
    let c = &mut c;
    if on(c, 20) { pick(c, &[1, 3, 8]) } else { 0 }
}

/// Everything of the fleet file but the engines.
fn limits(c: &mut Prng, dialect: Dialect, known: &Known) -> String {
    let seats = pick(c, &[1u64, 2, 4, 64]);
    let queue = pick(c, &[0u64, 0, 1, 3, 40]);
    let retained = seats + queue + pick(c, &[0u64, 1, 3]);
    let first_token = match pick(c, &[0, 0, 1, 2]) {
        0 => String::new(),
        1 => "first_token_timeout_s = 0.3\n".into(),
        _ => "first_token_timeout_s = 3\n".into(),
    };
    let dialect = match dialect {
        Dialect::Openai => "dialect = \"openai\"\ntokenize = false\n".into(),
        Dialect::Sglang => format!("dialect = \"sglang\"\ntokenize = {}\n", on(c, 60)),
        _ => format!("tokenize = {}\n", on(c, 60)),
    };
    let mut out = String::from(
        "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\nmodel_aliases = [\"alias\"]\nslo = { ttft_s = 2.0, tpot_s = 0.05 }\n",
    );
    let mut line = |text: String| out.push_str(&(text + "\n"));
    line("[runtime]".into());
    line(format!(
        "max_header_bytes = {}",
        pick(c, &[1_024, 4_096, 65_536])
    ));
    line(format!("header_timeout_s = {}", pick(c, &["0.5", "10"])));
    line(format!("body_idle_timeout_s = {}", pick(c, &["0.5", "30"])));
    line(format!("keepalive_idle_s = {}", pick(c, &["0.5", "75"])));
    line(format!(
        "client_write_stall_s = {}",
        pick(c, &["0.5", "30"])
    ));
    line(format!(
        "client_keepalive_s = {}",
        pick(c, &["0", "0", "0.02", "1"])
    ));
    line(format!("[serving]\nadmission = \"{}\"", known.admission));
    line(format!("max_connections = {seats}"));
    line(format!("max_retained = {retained}"));
    line(format!("queue_capacity = {queue}"));
    line(format!(
        "queue_timeout_s = {}",
        pick(c, &["0.05", "1", "30"])
    ));
    for phase in ["prefill", "decode"] {
        line(format!(
            "{phase}_concurrency = {}",
            pick(c, &[0, 0, 0, 1, 2])
        ));
    }
    let placement = pick(c, &["least", "round_robin"]);
    line(format!(
        "placement = \"{}\"",
        known.placement.unwrap_or(placement)
    ));
    line(format!("max_attempts = {}", 1 + c.below(3)));
    line(format!("retry_budget = {}", pick(c, &[0, 2, 100])));
    line(format!("retry_base_s = {}", pick(c, &["0", "0.01", "0.1"])));
    line(format!(
        "max_request_bytes = {}",
        pick(c, &[2_048, 4_194_304])
    ));
    line(format!(
        "max_response_bytes = {}",
        pick(c, &[4_096, 16_777_216, 16_777_216])
    ));
    line(format!(
        "request_timeout_s = {}",
        pick(c, &["0.2", "2", "60", "60"])
    ));
    line(format!(
        "prefill_timeout_s = {}",
        pick(c, &["0.2", "2", "120"])
    ));
    line("[engine]".into());
    line(format!("{dialect}{first_token}"));
    line(format!(
        "decode_read_timeout_s = {}",
        pick(c, &["0", "0.3", "10"])
    ));
    line(format!("tokenize_timeout_s = {}", pick(c, &["0.1", "2"])));
    line(format!("connect_timeout_s = {}", pick(c, &["0.2", "10"])));
    line(format!("pool_max = {}", pick(c, &[0, 0, 1, 2])));
    line(format!("pool_timeout_s = {}", pick(c, &["0.05", "5"])));
    line(format!("kv_lease_s = {}", pick(c, &["0", "2", "30"])));
    out
}

/// What the router was told of its engines. It has little to do with what they are: predictions may be as wrong as they like.
struct Known {
    chance: Prng,
    profiled: bool,
    admission: &'static str,
    placement: Option<&'static str>,
}

impl Known {
    /// From chance of its own, so that fleets without profiles are as they would be without this.
    fn new(seed: u64) -> Known {
        let mut chance = Prng::new(seed ^ 0x7072_6f66_696c_6500);
        let c = &mut chance;
        let profiled = on(c, 35);
        let predictive = profiled && on(c, 70);
        let price = profiled && on(c, 80);
        Known {
            profiled,
            admission: if predictive { "predictive" } else { "open" },
            placement: price.then_some("price"),
            chance,
        }
    }

    /// A profile of each engine, when it is to have one: mostly fast and roomy, so that what is tight is tight alone.
    fn tell(mut self, snapshot: &Snapshot, seed: u64) -> Vec<Row> {
        if !self.profiled {
            return Vec::new();
        }
        let c = &mut self.chance;
        let (prompt_s, token_s) = pick(c, &[(0.01, 1e-6), (0.7, 1e-4), (1.9, 1e-3), (0.1, 0.03)]);
        let (interval_s, request_s) = pick(c, &[(0.001, 0.0), (0.04, 0.0), (0.02, 0.02)]);
        let slots = pick(c, &[64, 64, 1, 2]);
        let kv_tokens = pick(c, &[1 << 20, 1 << 20, 60, 1_000]);
        let rows = snapshot.engines.iter().map(|engine| {
            format!(
                r#"{{"iid":"{}","ttft_a":0,"ttft_b":{token_s:e},"ttft_c":{prompt_s:e},"tpot_slope":{:e},
                "tpot_request_slope":{request_s:e},"tpot_intercept":{interval_s:e},"kv_capacity_tokens":{kv_tokens},
                "decode_max_requests":{slots}}}"#,
                engine.iid,
                pick(c, &[0.0, 1e-9, 1e-5]),
            )
        });
        let rows: Vec<String> = rows.collect();
        let text = format!(
            r#"{{"schema":"narwhal.profiles","schema_version":1,"profiles":[{}]}}"#,
            rows.join(",")
        );
        let rows = config::profiles::parse("sim.json", &text, Format::Json);
        rows.unwrap_or_else(|why| panic!("seed {seed}: {why}"))
    }
}

/// The engines, and what each is for.
fn fleet(c: &mut Prng, dialect: Dialect) -> (String, Vec<Role>) {
    let shape = match dialect {
        Dialect::Openai => pick(c, &["b", "bb", "bbb"]),
        Dialect::Sglang => pick(c, &["PD", "PPDD", "PDD", "B"]),
        _ => pick(
            c,
            &[
                "PD", "PD", "PPDD", "PDD", "pd", "pddd", "d", "bb", "PDb", "B",
            ],
        ),
    };
    let mut out = String::new();
    let lone = shape.bytes().all(|kind| kind.eq_ignore_ascii_case(&b'b'));
    if lone {
        // Belongs to the section of the engines' limits, which stands right before.
        out.push_str("connector = \"none\"\n");
    }
    let mut roles = Vec::new();
    for (i, kind) in shape.bytes().enumerate() {
        let role = match kind.to_ascii_lowercase() {
            b'p' => Role::Prefill,
            b'd' => Role::Decode,
            _ => Role::Both,
        };
        roles.push(role);
        let role = role.name();
        out.push_str(&format!(
            "[[engines]]\niid = \"e{i}\"\nurl = \"http://10.0.0.{}:8000{}\"\nrole = \"{role}\"\npin = {}\n",
            i + 1,
            if i == 1 { "/base" } else { "" },
            kind.is_ascii_uppercase(),
        ));
    }
    (out, roles)
}

fn setup(c: &mut Prng, seed: u64, number: u64) -> Setup {
    Setup {
        model: "m".into(),
        len_max: 8_192,
        profile: Profile {
            transfer_s: pick(c, &[0.0, 0.0, 0.03]),
            prefill_serial: on(c, 30),
            ..Profile::flat(
                pick(c, &[0.0, 5.0, 50.0, 400.0]),
                pick(c, &[0.0, 0.3, 5.0, 40.0]),
            )
        },
        answer_tokens: None,
        seed: seed ^ (number << 48),
        ..Setup::default()
    }
}
