//! The world of one seed: a clock, an agenda of wake-ups, and all who wake up. Nothing happens but what a wake-up does, and which of
//! several at one moment comes first is the seed's choice: so shards interleave in every order.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;
use narwhal::metrics::outcome::End;
use narwhal::metrics::standing::Standing;
use narwhal::shard::Shared;
use narwhal::stub::engine::{self, Engine};
use narwhal::wire::h1::encode;

use crate::checks::Books;
use crate::client::Client;
use crate::conn::{Conn, Letter, ShardSim};
use crate::control::Control;
use crate::faults::Fault;
use crate::host::Host;
use crate::net::{Ending, Net, Wake};
use crate::plan::{Plan, pick};
use crate::queue::Lines;
use crate::reload::Reloads;
use crate::trace::Trace;

pub struct World {
    pub plan: Plan,
    pub now: Instant,
    /// What happens.
    pub chance: Prng,
    /// Who clients are.
    pub dice: Prng,
    agenda: BinaryHeap<Reverse<(Instant, u64, u64, Wake)>>,
    entries: u64,
    pub net: Net,
    pub shared: Arc<Shared>,
    pub shards: Vec<ShardSim>,
    pub conns: Vec<Conn>,
    pub clients: Vec<Client>,
    pub hosts: Vec<Host>,
    pub engines: engine::World,
    /// Until when each engine's process is gone, stands still, or takes nothing new.
    down_until: Vec<Instant>,
    frozen_until: Vec<Instant>,
    winding_until: Vec<Instant>,
    /// Connections that look again without an event.
    pub woken: Vec<usize>,
    /// Handoffs that a decode leg has carried.
    pub handoffs: BTreeSet<Vec<u8>>,
    pub books: Books,
    pub lines: Lines,
    pub control: Option<Control>,
    pub reloads: Reloads,
    pub trace: Trace,
    pub cover: Cover,
    pub chaos: Vec<Event>,
}

/// What a run came by.
#[derive(Clone, Debug)]
pub struct Cover {
    pub ends: [u64; End::COUNT],
    pub faults: [u64; Fault::ALL.len()],
    pub served_whole: u64,
    pub steps: u64,
    pub waits: u64,
    /// Came in after a wait in a line.
    pub queued: u64,
    pub reused: u64,
    pub stale: u64,
    pub most_seats: u64,
    pub freezes: u64,
    pub winds_down: u64,
    pub steps_of_date: u64,
    pub ejections: u64,
    pub readmissions: u64,
    /// Engines that were drained and stopped.
    pub stops: u64,
    /// Engines that came to the fleet, and that came back to a place of theirs.
    pub added: u64,
    pub returned: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Flip(usize),
    Kill(usize),
    Restart(usize),
    Outage(usize),
    Hold,
    Release,
    Stall(usize),
    Exodus,
    Storm,
    Drain,
    /// A monitoring pass, and the answer to its question of that number to an engine.
    Pass,
    Answer(usize, u64),
    /// Operators drain an engine, stop it as soon as it is empty, and take the new process back.
    Withdraw(usize),
    Emptied(usize),
    Readmit(usize),
    /// The fleet file loses an engine, and has it again; a shard takes that over.
    TakeOut(usize),
    PutBack,
    Commit(usize),
    Freeze(usize),
    WindDown(usize),
    /// The wall clock steps.
    Step,
    Leave,
}

/// Steps of one run; more means that something goes round in circles.
const STEPS_MAX: u64 = 400_000;

impl World {
    pub fn new(plan: Plan, wordy: bool) -> World {
        let shared = Arc::new(Shared::new(&plan.snapshot, plan.shards));
        let seed = plan.seed;
        let shards = (0..plan.shards).map(|id| ShardSim::new(seed, id, &plan, &shared));
        let shards = shards.collect();
        let now = Instant::from_nanos(1_000_000_000);
        let mut engines = engine::World::default();
        for setup in &plan.engines {
            engines.engines.push(Engine::new(setup.clone(), now));
        }
        let never = vec![Instant::ZERO; plan.engines.len()];
        let mut world = World {
            now,
            chance: Prng::new(seed),
            dice: Prng::new(seed ^ 0xd1ce),
            agenda: BinaryHeap::new(),
            entries: 0,
            net: Net::new(plan.weather),
            books: Books::new(&shared),
            lines: Lines::default(),
            control: plan.watch.map(|watch| Control::new(watch, &plan.snapshot)),
            reloads: Reloads::new(&plan.snapshot, plan.shards),
            shared,
            shards,
            conns: Vec::new(),
            clients: Vec::new(),
            hosts: Vec::new(),
            engines,
            down_until: never.clone(),
            frozen_until: never.clone(),
            winding_until: never,
            woken: Vec::new(),
            handoffs: BTreeSet::new(),
            trace: Trace::new(wordy),
            cover: Cover::default(),
            chaos: Vec::new(),
            plan,
        };
        world.write_agenda();
        world
    }

    fn write_agenda(&mut self) {
        self.queue_at(self.now, Wake::Arrival);
        let chaos = self.plan.chaos;
        let span = self.plan.ends_after.as_nanos() as u64;
        let engines = self.plan.engines.len() as u64;
        let add = |world: &mut World, count: u64, make: fn(usize) -> Event, among: u64| {
            for _ in 0..count {
                let what = make(world.chance.below(among) as usize);
                let at = world.now + Duration::from_nanos(world.chance.below(span));
                world.plan_event(at, what);
            }
        };
        add(self, chaos.flips, Event::Flip, engines);
        add(self, chaos.deaths, Event::Kill, engines);
        add(self, chaos.outages, Event::Outage, engines);
        add(self, chaos.holds, |_| Event::Hold, 1);
        add(self, chaos.stalls, Event::Stall, self.plan.shards as u64);
        add(self, chaos.exodus, |_| Event::Exodus, 1);
        add(self, chaos.storms, |_| Event::Storm, 1);
        add(self, u64::from(chaos.drains), |_| Event::Drain, 1);
        add(self, chaos.freezes, Event::Freeze, engines);
        add(self, chaos.winds_down, Event::WindDown, engines);
        add(self, chaos.steps, |_| Event::Step, 1);
        let end = self.now + self.plan.ends_after;
        self.plan_event(end, Event::Leave);
        self.control_begins();
        self.reloads_begin();
    }

    pub fn plan_event(&mut self, at: Instant, what: Event) {
        self.chaos.push(what);
        self.queue_at(at, Wake::Chaos(self.chaos.len() - 1));
    }

    // ── the agenda ──

    pub fn queue_at(&mut self, at: Instant, wake: Wake) {
        self.entries += 1;
        // Ties are broken by chance.
        let tie = self.chance.u64() >> 48;
        self.agenda.push(Reverse((at, tie, self.entries, wake)));
    }

    /// `wake` looks again at `at`, unless it does so earlier anyway.
    pub fn poke(&mut self, wake: Wake, at: Instant) {
        let mut at = at.max(self.now);
        let slot = match wake {
            Wake::Conn(i) => match self.conns.get_mut(i) {
                Some(conn) => {
                    let lag = self.plan.lag.as_nanos() as u64;
                    at = at + Duration::from_nanos(self.chance.below(lag + 1));
                    &mut conn.wake_at
                }
                // It is about to be accepted, and will look by itself.
                None => return,
            },
            Wake::Client(i) => match self.clients.get_mut(i) {
                Some(client) => &mut client.wake_at,
                None => return,
            },
            Wake::Host(i) => match self.hosts.get_mut(i) {
                Some(host) => &mut host.wake_at,
                None => return,
            },
            Wake::Mail(_) | Wake::House(_) | Wake::Arrival | Wake::Chaos(_) => {
                return self.queue_at(at, wake);
            }
        };
        if *slot > at {
            *slot = at;
            self.queue_at(at, wake);
        }
    }

    /// Runs until nobody wants to wake up any more.
    pub fn run(&mut self) {
        while let Some(Reverse((at, _, _, wake))) = self.agenda.pop() {
            assert!(at >= self.now, "time goes forward");
            let slot = match wake {
                Wake::Conn(i) => Some(&mut self.conns[i].wake_at),
                Wake::Client(i) => Some(&mut self.clients[i].wake_at),
                Wake::Host(i) => Some(&mut self.hosts[i].wake_at),
                _ => None,
            };
            if let Some(slot) = slot {
                if *slot != at {
                    continue;
                }
                *slot = Instant::FAR;
            }
            self.now = at;
            self.turn(wake);
            for (at, wake) in std::mem::take(&mut self.net.wakes) {
                self.poke(wake, at);
            }
            assert!(self.trace.steps < STEPS_MAX, "it goes round in circles");
        }
        self.check_rest();
        self.cover.steps = self.trace.steps;
    }

    fn turn(&mut self, wake: Wake) {
        self.note_open();
        match wake {
            Wake::Conn(c) => {
                self.wake_waiters(c);
                self.conn_turn(c);
            }
            Wake::Client(i) => self.client_turn(i),
            Wake::Host(h) => self.host_turn(h),
            Wake::Mail(shard) => self.mail_turn(shard),
            Wake::House(shard) => self.house_turn(shard),
            Wake::Arrival => self.arrival(),
            Wake::Chaos(i) => self.befalls(i),
        }
    }

    fn arrival(&mut self) {
        if self.clients.len() >= self.plan.clients || self.is_over() {
            return;
        }
        self.arrive();
        let gap = match self.plan.gap {
            Some(mean) => {
                let most = mean.as_nanos() as u64 * 2;
                Duration::from_nanos(self.chance.below(most + 1))
            }
            // Bursts: mostly none, sometimes long.
            None => Duration::from_millis(pick(&mut self.chance, &[0, 0, 0, 0, 300])),
        };
        self.queue_at(self.now + gap, Wake::Arrival);
    }

    pub fn is_over(&self) -> bool {
        let start = Instant::from_nanos(1_000_000_000);
        self.now.since(start) >= self.plan.ends_after
    }

    // ── what befalls the router and its engines ──

    fn befalls(&mut self, i: usize) {
        let what = self.chaos[i];
        self.trace
            .step(self.now, Wake::Chaos(i), "befalls", i as u64);
        self.trace.say(|| format!("{what:?}"));
        let soon = |world: &mut World, most: u64| {
            world.now + Duration::from_millis(world.chance.below(most))
        };
        match what {
            Event::Flip(engine) => {
                let line = self.shared.board.line(engine_id(engine));
                match self.chance.below(4) {
                    0 => line.set_ejected(true),
                    1 => line.set_live(false),
                    2 => line.set_ejected(false),
                    _ => line.set_live(true),
                }
            }
            Event::Kill(engine) => {
                let engines = &mut self.engines;
                engines.engines[engine].kill(&mut engines.handoffs);
                let at = soon(self, 2_000);
                self.plan_event(at, Event::Restart(engine));
            }
            Event::Restart(engine) => {
                let engines = &mut self.engines;
                engines.engines[engine].restart(self.now, &mut engines.handoffs);
            }
            Event::Outage(engine) => {
                let until = soon(self, 2_000);
                self.engine_stops(engine, until);
            }
            Event::Pass => self.control_pass(),
            Event::Answer(engine, number) => self.control_hears(engine, number),
            Event::Withdraw(engine) => self.control_withdraws(engine),
            Event::Emptied(engine) => self.control_stops(engine),
            Event::Readmit(engine) => self.control_readmits(engine),
            Event::TakeOut(engine) => self.take_out(engine),
            Event::PutBack => self.put_back(),
            Event::Commit(shard) => self.commit(shard),
            Event::Hold => {
                let to = pick(
                    &mut self.chance,
                    &[Standing::Standby, Standing::Maintenance],
                );
                self.shared.standing.set(to);
                let at = soon(self, 500);
                self.plan_event(at, Event::Release);
            }
            Event::Release => {
                self.shared.standing.set(Standing::Serving);
            }
            Event::Stall(shard) => {
                let ms = pick(&mut self.chance, &[10, 1_500, 40_000]);
                let until = self.now + Duration::from_millis(ms);
                let sim = &mut self.shards[shard];
                sim.stalled_until = sim.stalled_until.max(until);
                self.keep_house(shard);
            }
            Event::Exodus => self.everybody_leaves(),
            Event::Storm => {
                let count = 1 + self.chance.below(12);
                for _ in 0..count {
                    if !self.is_over() {
                        self.arrive();
                    }
                }
            }
            Event::Drain => {
                self.shared.standing.set(Standing::Draining);
                for c in 0..self.conns.len() {
                    let shard = self.conns[c].shard;
                    let at = self.now + Duration::from_millis(self.chance.below(300));
                    self.shards[shard].mail.push((at, c, Letter::CloseIdle));
                    self.queue_at(at, Wake::Mail(shard));
                }
            }
            Event::Freeze(engine) => {
                let ms = pick(&mut self.chance, &[40, 900, 4_000, 40_000]);
                let until = self.now + Duration::from_millis(ms);
                self.frozen_until[engine] = self.frozen_until[engine].max(until);
                self.cover.freezes += 1;
            }
            Event::WindDown(engine) => {
                self.winding_until[engine] = soon(self, 2_000);
                self.cover.winds_down += 1;
            }
            Event::Step => {
                // All that any part of a shard knows of it.
                let date = encode::http_date(self.chance.below(4_000_000_000));
                for sim in &mut self.shards {
                    sim.shard.date = date;
                }
                self.cover.steps_of_date += 1;
            }
            Event::Leave => self.everybody_leaves(),
        }
    }

    /// Its process is gone until then, with all that ran there.
    pub fn engine_stops(&mut self, engine: usize, until: Instant) {
        self.down_until[engine] = self.down_until[engine].max(until);
        for h in 0..self.hosts.len() {
            if self.hosts[h].engine == engine {
                self.host_closes(h, Ending::Reset);
            }
        }
        self.plan_event(self.now, Event::Restart(engine));
    }

    fn everybody_leaves(&mut self) {
        for i in 0..self.clients.len() {
            self.client_leaves(i, true);
        }
    }

    /// Until when the engine stands still, when it does.
    pub fn engine_is_frozen(&self, engine: usize) -> Option<Instant> {
        Some(self.frozen_until[engine]).filter(|until| *until > self.now)
    }

    pub fn engine_winds_down(&self, engine: usize) -> bool {
        self.winding_until[engine] > self.now
    }

    pub fn engine_is_down(&self, engine: usize) -> bool {
        self.down_until[engine] > self.now
    }
}

pub fn engine_id(engine: usize) -> narwhal::base::units::EngineId {
    narwhal::base::units::EngineId(engine as u16)
}

impl Default for Cover {
    fn default() -> Self {
        Cover {
            ends: [0; End::COUNT],
            faults: [0; Fault::ALL.len()],
            served_whole: 0,
            steps: 0,
            waits: 0,
            queued: 0,
            reused: 0,
            stale: 0,
            most_seats: 0,
            freezes: 0,
            winds_down: 0,
            steps_of_date: 0,
            ejections: 0,
            readmissions: 0,
            stops: 0,
            added: 0,
            returned: 0,
        }
    }
}

impl Cover {
    pub fn add(&mut self, other: &Cover) {
        for (sum, n) in self.ends.iter_mut().zip(other.ends) {
            *sum += n;
        }
        for (sum, n) in self.faults.iter_mut().zip(other.faults) {
            *sum += n;
        }
        self.served_whole += other.served_whole;
        self.steps += other.steps;
        self.waits += other.waits;
        self.queued += other.queued;
        self.reused += other.reused;
        self.stale += other.stale;
        self.freezes += other.freezes;
        self.winds_down += other.winds_down;
        self.steps_of_date += other.steps_of_date;
        self.ejections += other.ejections;
        self.readmissions += other.readmissions;
        self.stops += other.stops;
        self.added += other.added;
        self.returned += other.returned;
        self.most_seats = self.most_seats.max(other.most_seats);
    }
}
