//! The runtime's part: shards, their connections, pools and mail. One turn of a connection is one thing that happened to it and then all
//! that it wants, as in `runtime::drive`; which connection's turn comes next is the seed's choice.

use std::sync::Arc;
use std::time::Duration;

use narwhal::base::limits;
use narwhal::base::time::Instant;
use narwhal::base::units::{EngineId, ShardId};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::{Counts, ShardLedger};
use narwhal::metrics::outcome::{End, Stage};
use narwhal::metrics::standing::Answer;
use narwhal::path::accept::{Connection, Front, SLOTS};
use narwhal::path::leg::{LegCommand, LegFault, State};
use narwhal::path::peek::View;
use narwhal::shard::Shard;
use narwhal::shard::waits::Awaited;

use crate::faults::Fault;
use crate::net::{Ending, Got, Link, Wake};
use crate::plan::{Hook, on, pick};
use crate::world::World;

/// One core's share.
pub struct ShardSim {
    pub shard: Shard,
    pub ledger: Arc<ShardLedger>,
    /// As it was after the last step.
    pub counts: Counts,
    /// Idle engine connections, by engine, oldest first.
    pub pool: Vec<Vec<(Link, Instant)>>,
    /// Connections to each engine that legs hold.
    pub held: Vec<usize>,
    /// Not polled until then.
    pub stalled_until: Instant,
    /// Letters on their way to this shard, in order, each with the time from which it may be read. Whatever other shards or the
    /// control thread tell a shard comes through here.
    pub mail: Vec<(Instant, usize, Letter)>,
    /// When it is to look around next.
    pub house_due: Instant,
}

#[derive(Debug)]
pub enum Letter {
    Answer(Answer),
    /// Another shard handed this one a permit.
    Granted(Awaited),
    CloseIdle,
}

pub struct Conn {
    pub wake_at: Instant,
    pub shard: usize,
    pub machine: Connection,
    pub link: Option<Link>,
    reading: bool,
    writing: Option<(Vec<u8>, usize)>,
    pub legs: [LegIo; SLOTS],
    letter: Option<Letter>,
    /// Beside the letter: a call to look at its place in a line.
    look: bool,
    pub view: View,
    /// How its exchanges ended, in order.
    pub ends: Vec<End>,
    /// Several ended in one step: their order is not known.
    pub ends_at_once: bool,
    pub closed: bool,
    /// A hook has its client's end ignored.
    deafened: bool,
}

#[derive(Default)]
pub struct LegIo {
    pub engine: Option<EngineId>,
    pub link: Option<Link>,
    step: LegStep,
    fresh: bool,
    holds: bool,
    request: Vec<u8>,
    reused: bool,
    reading: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LegStep {
    #[default]
    Idle,
    /// For a connection to be let go.
    Waiting,
    Dialing {
        at: Instant,
        up: bool,
    },
    Sending {
        at: Instant,
    },
    Open,
}

/// What a connection may take up now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Write,
    Dialed(usize),
    Sent(usize),
    Leg(usize),
    Client,
    Mail,
    Timer,
}

impl ShardSim {
    pub fn new(world_seed: u64, id: usize, plan: &crate::plan::Plan, shared: &Shared) -> Self {
        let ledger = Arc::new(ShardLedger::new());
        let engines = plan.snapshot.engines.len();
        ShardSim {
            shard: Shard::new(
                ShardId(id as u16),
                plan.snapshot.clone(),
                shared.clone(),
                ledger.clone(),
                Arc::new(ShardTimes::new()),
                world_seed ^ (id as u64) << 32,
            ),
            counts: ledger.snapshot(),
            ledger,
            pool: vec![Vec::new(); engines],
            held: vec![0; engines],
            stalled_until: Instant::ZERO,
            mail: Vec::new(),
            house_due: Instant::FAR,
        }
    }
}

type Shared = Arc<narwhal::shard::Shared>;

impl World {
    /// A client has connected.
    pub fn accept(&mut self, shard: usize, link: Link) {
        let c = self.conns.len();
        let sim = &mut self.shards[shard];
        let machine = Connection::new(&mut sim.shard, self.now, c as u64 + 1, true);
        let view = machine.view();
        self.conns.push(Conn {
            wake_at: Instant::FAR,
            shard,
            machine,
            link: Some(link),
            reading: false,
            writing: None,
            legs: Default::default(),
            letter: None,
            look: false,
            view,
            ends: Vec::new(),
            ends_at_once: false,
            closed: false,
            deafened: false,
        });
        self.trace
            .step(self.now, Wake::Conn(c), "accepted", shard as u64);
        self.pump(c);
        self.settle(c);
    }

    /// One turn.
    pub fn conn_turn(&mut self, c: usize) {
        if self.conns[c].closed {
            return;
        }
        let stalled = self.shards[self.conns[c].shard].stalled_until;
        if stalled > self.now {
            return self.poke(Wake::Conn(c), stalled);
        }
        let (ready, count) = self.ready(c);
        if count == 0 {
            return self.settle(c);
        }
        let io = match ready[..count].last() {
            Some(Ready::Timer) if count > 1 => count - 1,
            _ => count,
        };
        // Whoever polls last is the timer, whatever the order of the rest.
        let at = match self.plan.runtime_order {
            true => 0,
            false => self.chance.below(io as u64) as usize,
        };
        self.happens(c, ready[at]);
        let shard = self.conns[c].shard;
        self.pass_on(shard);
        self.pump(c);
        self.pass_on(shard);
        self.keep_house_if_needed(shard);
        self.check_turn(c);
        if self.conns[c].closed {
            return;
        }
        self.settle(c);
    }

    /// When this connection has to look again.
    fn settle(&mut self, c: usize) {
        if self.conns[c].closed {
            return;
        }
        let (_, count) = self.ready(c);
        let at = match count {
            0 => self.next_look(c),
            _ => self.now,
        };
        if at != Instant::FAR {
            self.poke(Wake::Conn(c), at);
        }
    }

    fn ready(&self, c: usize) -> ([Ready; 9], usize) {
        let conn = &self.conns[c];
        let mut out = [Ready::Timer; 9];
        let mut n = 0;
        let mut add = |what| {
            out[n] = what;
            n += 1;
        };
        if let (Some(link), Some(_)) = (conn.link, &conn.writing)
            && self.net.room(link.down, self.now) != Some(0)
        {
            add(Ready::Write);
        }
        for (slot, leg) in conn.legs.iter().enumerate() {
            match leg.step {
                LegStep::Dialing { at, .. } if at <= self.now => add(Ready::Dialed(slot)),
                LegStep::Sending { at } if at <= self.now => add(Ready::Sent(slot)),
                LegStep::Open if leg.reading => {
                    let link = leg.link.expect("an open leg has its socket");
                    if self.net.readable_at(link.down) <= self.now {
                        add(Ready::Leg(slot));
                    }
                }
                _ => {}
            }
        }
        if let (Some(link), true) = (conn.link, conn.reading)
            && self.net.readable_at(link.up) <= self.now
        {
            add(Ready::Client);
        }
        if conn.look || conn.letter.is_some() {
            add(Ready::Mail);
        }
        if conn.machine.deadline() <= self.now {
            add(Ready::Timer);
        }
        (out, n)
    }

    fn next_look(&self, c: usize) -> Instant {
        let conn = &self.conns[c];
        let mut at = conn.machine.deadline();
        for leg in &conn.legs {
            at = at.min(match leg.step {
                LegStep::Dialing { at, .. } | LegStep::Sending { at } => at,
                LegStep::Open if leg.reading => leg
                    .link
                    .map_or(Instant::FAR, |l| self.net.readable_at(l.down)),
                _ => Instant::FAR,
            });
        }
        if let (Some(link), true) = (conn.link, conn.reading) {
            at = at.min(self.net.readable_at(link.up));
        }
        at
    }

    fn happens(&mut self, c: usize, what: Ready) {
        match what {
            Ready::Write => self.write_client(c),
            Ready::Client => self.read_client(c),
            Ready::Dialed(slot) => self.leg_dialed(c, slot),
            Ready::Sent(slot) => {
                let conn = &mut self.conns[c];
                let shard = &mut self.shards[conn.shard].shard;
                let leg = &mut conn.legs[slot];
                leg.step = LegStep::Open;
                let reused = leg.reused;
                conn.machine.leg_sent(shard, self.now, slot, reused);
                self.trace
                    .step(self.now, Wake::Conn(c), "leg sent", slot as u64);
            }
            Ready::Leg(slot) => self.read_leg(c, slot),
            Ready::Mail => {
                let conn = &mut self.conns[c];
                let shard = &mut self.shards[conn.shard].shard;
                if std::mem::take(&mut conn.look) {
                    self.trace.step(self.now, Wake::Conn(c), "looks", 0);
                    return conn.machine.look(shard, self.now);
                }
                let Some(letter) = conn.letter.take() else {
                    return;
                };
                self.trace.step(self.now, Wake::Conn(c), "letter", 0);
                match letter {
                    // It is the shard's to open.
                    Letter::Granted(_) => {}
                    Letter::Answer(answer) => {
                        conn.machine.control_answer(shard, self.now, &answer);
                    }
                    Letter::CloseIdle => conn.machine.close_when_idle(shard, self.now),
                }
            }
            Ready::Timer => {
                let conn = &mut self.conns[c];
                let shard = &mut self.shards[conn.shard].shard;
                self.trace.step(self.now, Wake::Conn(c), "timer", 0);
                conn.machine.timer(shard, self.now);
                assert!(
                    conn.machine.deadline() > self.now,
                    "a timer that is never served"
                );
            }
        }
    }

    fn write_client(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        let shard = &mut self.shards[conn.shard].shard;
        let (Some(link), Some((buf, from))) = (conn.link, conn.writing.take()) else {
            return;
        };
        let Some(room) = self.net.room(link.down, self.now) else {
            self.trace.step(self.now, Wake::Conn(c), "write broken", 0);
            return conn.machine.client_broken(shard, self.now);
        };
        let mut n = room.min(buf.len() - from);
        if self.net.weather.crumbs && n > 1 && on(&mut self.chance, 10) {
            n = 1 + self.chance.below(n as u64 - 1) as usize;
        }
        self.net
            .write(&mut self.chance, self.now, link.down, &buf[from..from + n]);
        self.trace.step(self.now, Wake::Conn(c), "wrote", n as u64);
        let is_short = from + n < buf.len();
        if is_short && self.plan.hook != Some(Hook::LoseTail) {
            conn.machine.client_progress(shard, self.now);
            conn.writing = Some((buf, from + n));
        } else {
            conn.machine.client_written(shard, self.now, buf);
        }
    }

    fn read_client(&mut self, c: usize) {
        let conn = &mut self.conns[c];
        let shard = &mut self.shards[conn.shard].shard;
        let Some(link) = conn.link else { return };
        conn.reading = false;
        let most = conn.machine.client_read_bytes();
        let mut bytes = Vec::new();
        match self
            .net
            .read(&mut self.chance, self.now, link.up, most, &mut bytes)
        {
            Got::Nothing => conn.reading = true,
            Got::Bytes(n) => {
                self.trace
                    .step(self.now, Wake::Conn(c), "client bytes", n as u64);
                conn.machine.client_bytes(shard, self.now, &bytes);
            }
            Got::End(_) => {
                self.trace.step(self.now, Wake::Conn(c), "client end", 0);
                if self.plan.hook == Some(Hook::MissLeaving) {
                    conn.deafened = true;
                    return;
                }
                let stage = conn.view.exchange.map(|x| x.stage);
                if self.plan.hook == Some(Hook::LeakSeat) && stage == Some(Stage::Prefill) {
                    // A permit that is dropped does not go back.
                    let _seat = self.shared.seats.acquire(0);
                }
                conn.machine.client_end(shard, self.now);
                // R-HTTP-5: at once, without waiting for a byte of the engine.
                let view = conn.machine.view();
                assert!(
                    view.exchange.is_none(),
                    "the client is gone, its request is not"
                );
                assert_ne!(view.front, Front::Running, "the client is gone");
            }
        }
    }

    // ── legs ──

    fn leg_dialed(&mut self, c: usize, slot: usize) {
        let conn = &mut self.conns[c];
        let shard = &mut self.shards[conn.shard].shard;
        let leg = &mut conn.legs[slot];
        let LegStep::Dialing { up, .. } = leg.step else {
            return;
        };
        let engine = leg.engine.expect("a leg that dials has its engine");
        leg.step = LegStep::Idle;
        self.trace
            .step(self.now, Wake::Conn(c), "dialed", u64::from(up));
        if !up {
            return conn
                .machine
                .leg_failed(shard, self.now, slot, LegFault::Connect);
        }
        if !conn.machine.leg_may_go(shard, self.now, slot) {
            return;
        }
        conn.machine.leg_connected(slot);
        let link = self.new_host(c, engine.index());
        self.conns[c].legs[slot].link = Some(link);
        self.send(c, slot);
    }

    /// The request goes out.
    fn send(&mut self, c: usize, slot: usize) {
        let leg = &mut self.conns[c].legs[slot];
        let link = leg.link.expect("who sends is connected");
        let request = std::mem::take(&mut leg.request);
        let shard = self.conns[c].shard;
        self.net
            .write(&mut self.chance, self.now, link.up, &request);
        let at = self.now + self.net.delay(&mut self.chance);
        self.conns[c].legs[slot].step = LegStep::Sending { at };
        self.shards[shard].shard.give_buffer(request);
    }

    fn read_leg(&mut self, c: usize, slot: usize) {
        let conn = &mut self.conns[c];
        let shard = &mut self.shards[conn.shard].shard;
        let leg = &mut conn.legs[slot];
        let Some(link) = leg.link else { return };
        leg.reading = false;
        let mut bytes = Vec::new();
        let most = limits::LEG_READ_BYTES;
        let got = self
            .net
            .read(&mut self.chance, self.now, link.down, most, &mut bytes);
        let who = Wake::Conn(c);
        let stale = leg.reused && conn.view.legs[slot].state == State::Head;
        match got {
            Got::Nothing => leg.reading = true,
            Got::Bytes(n) => {
                self.trace.step(self.now, who, "leg bytes", n as u64);
                conn.machine.leg_bytes(shard, self.now, slot, &bytes);
                if self.plan.hook == Some(Hook::DoubleRead)
                    && on(&mut self.chance, 2)
                    && conn.machine.view().exchange.is_some_and(|x| x.started)
                {
                    conn.machine.leg_bytes(shard, self.now, slot, &bytes);
                }
            }
            Got::End(Ending::Fin) => {
                self.trace.step(self.now, who, "leg eof", slot as u64);
                self.cover.stale += u64::from(stale);
                conn.machine.leg_eof(shard, self.now, slot);
            }
            Got::End(Ending::Reset) => {
                self.trace.step(self.now, who, "leg reset", slot as u64);
                self.cover.stale += u64::from(stale);
                conn.machine
                    .leg_failed(shard, self.now, slot, LegFault::Broken);
            }
        }
    }

    // ── what a connection wants ──

    fn pump(&mut self, c: usize) {
        // A wait that is over may fail at once, and then more is wanted: it comes first.
        for slot in 0..SLOTS {
            if self.conns[c].legs[slot].step == LegStep::Waiting {
                self.connect(c, slot);
            }
        }
        let mut turns = 0;
        loop {
            let conn = &mut self.conns[c];
            let shard = &self.shards[conn.shard].shard;
            let Some((slot, command)) = conn.machine.next_command(shard) else {
                break;
            };
            turns += 1;
            assert!(turns < 100, "commands without end");
            self.apply(c, slot, command);
        }
        let conn = &mut self.conns[c];
        let shard = &self.shards[conn.shard].shard;
        if conn.link.is_some()
            && conn.writing.is_none()
            && let Some((buf, from)) = conn.machine.take_output(shard, self.now)
        {
            assert!(from < buf.len(), "an empty write");
            conn.writing = Some((buf, from));
        }
        for slot in 0..SLOTS {
            let conn = &mut self.conns[c];
            let wanted = conn.machine.leg_reads(slot);
            let leg = &mut conn.legs[slot];
            leg.reading |= wanted && leg.step == LegStep::Open;
        }
        let conn = &mut self.conns[c];
        if conn.machine.client_reads() && conn.link.is_some() && !conn.deafened {
            conn.reading = true;
        }
        let Some(link) = conn.link else {
            return self.close_if_done(c);
        };
        if conn.machine.wants_shutdown() && conn.writing.is_none() {
            self.net
                .end(&mut self.chance, self.now, link.down, Ending::Fin);
        }
        if conn.machine.client_is_done() {
            (conn.reading, conn.writing, conn.link) = (false, None, None);
            self.net
                .close(&mut self.chance, self.now, link.up, link.down, Ending::Fin);
        }
        self.close_if_done(c);
    }

    fn close_if_done(&mut self, c: usize) {
        if self.conns[c].link.is_none() && self.conns[c].machine.is_closed() {
            for slot in 0..SLOTS {
                self.drop_leg(c, slot);
            }
            self.conns[c].closed = true;
            self.trace.step(self.now, Wake::Conn(c), "closed", 0);
        }
    }

    fn apply(&mut self, c: usize, slot: usize, command: LegCommand) {
        match command {
            LegCommand::Open {
                engine,
                kind,
                request,
                fresh,
            } => {
                self.trace
                    .step(self.now, Wake::Conn(c), kind.name(), u64::from(engine.0));
                self.drop_leg(c, slot);
                self.check_leg_request(c, kind, &request);
                let leg = &mut self.conns[c].legs[slot];
                (leg.engine, leg.request, leg.fresh) = (Some(engine), request, fresh);
                self.connect(c, slot);
            }
            LegCommand::Close => {
                self.trace
                    .step(self.now, Wake::Conn(c), "close leg", slot as u64);
                if self.plan.hook == Some(Hook::ParkEarly) && on(&mut self.chance, 10) {
                    self.park(c, slot);
                }
                self.drop_leg(c, slot);
            }
            LegCommand::Park => {
                self.trace
                    .step(self.now, Wake::Conn(c), "park leg", slot as u64);
                self.check_park(c, slot);
                self.park(c, slot);
                self.drop_leg(c, slot);
            }
        }
    }

    fn park(&mut self, c: usize, slot: usize) {
        let conn = &mut self.conns[c];
        let shard = conn.shard;
        let leg = &mut conn.legs[slot];
        if leg.step != LegStep::Open {
            return;
        }
        let (Some(engine), Some(link)) = (leg.engine, leg.link.take()) else {
            return;
        };
        if !self.is_in_fleet(shard, engine) {
            return self.close_leg_socket(link);
        }
        let conn = &mut self.conns[c];
        let pool = &mut self.shards[conn.shard].pool[engine.index()];
        pool.push((link, self.now));
        let most = self.plan.snapshot.fleet.engine.pool_max.unwrap_or(0);
        if most > 0 && pool.len() > most {
            let (oldest, _) = pool.remove(0);
            self.close_leg_socket(oldest);
        }
    }

    pub fn close_leg_socket(&mut self, link: Link) {
        let ending = match on(&mut self.chance, 50) {
            true => Ending::Fin,
            false => Ending::Reset,
        };
        self.net
            .close(&mut self.chance, self.now, link.down, link.up, ending);
    }

    /// A connection for the leg: a pooled one, a new one, or a place among those who wait.
    fn connect(&mut self, c: usize, slot: usize) {
        let conn = &mut self.conns[c];
        let sim = &mut self.shards[conn.shard];
        let leg = &mut conn.legs[slot];
        let engine = leg.engine.expect("a leg that is opened has its engine");
        let most = self.plan.snapshot.fleet.engine.pool_max.unwrap_or(0);
        let waits = leg.step == LegStep::Waiting;
        if waits && !conn.machine.leg_may_go(&mut sim.shard, self.now, slot) {
            return;
        }
        if most > 0 && sim.held[engine.index()] >= most {
            if !waits {
                conn.machine.leg_waits(&sim.shard, self.now, slot);
            }
            leg.step = LegStep::Waiting;
            return;
        }
        sim.held[engine.index()] += 1;
        leg.holds = true;
        if waits {
            conn.machine.leg_opens(&sim.shard, self.now, slot);
        }
        let pooled = match leg.fresh {
            true => None,
            false => self.pool_take(c, engine),
        };
        self.cover.reused += u64::from(pooled.is_some());
        let leg = &mut self.conns[c].legs[slot];
        leg.reused = pooled.is_some();
        if let Some(link) = pooled {
            self.conns[c].machine.leg_connected(slot);
            let leg = &mut self.conns[c].legs[slot];
            leg.link = Some(link);
            self.net.hand_over(link, Wake::Conn(c));
            return self.send(c, slot);
        }
        self.dial(c, slot, engine);
    }

    fn dial(&mut self, c: usize, slot: usize, engine: EngineId) {
        let down = self.engine_is_down(engine.index());
        let strikes = |world: &mut World, fault| {
            let hit = world.plan.faults.strikes(&mut world.chance, fault);
            world.cover.faults[fault as usize] += u64::from(hit);
            hit
        };
        if strikes(self, Fault::NoAddress) {
            self.conns[c].legs[slot].step = LegStep::Idle;
            let conn = &mut self.conns[c];
            let shard = &mut self.shards[conn.shard].shard;
            return conn
                .machine
                .leg_failed(shard, self.now, slot, LegFault::Connect);
        }
        let refused =
            strikes(self, Fault::Refuse) || down && pick(&mut self.chance, &[true, false]);
        let hangs = !refused && (down || strikes(self, Fault::DialHang));
        let delay = self.net.delay(&mut self.chance);
        let at = match hangs {
            true => Instant::FAR,
            false => self.now + delay,
        };
        self.conns[c].legs[slot].step = LegStep::Dialing { at, up: !refused };
    }

    /// The newest connection that is young and quiet.
    fn pool_take(&mut self, c: usize, engine: EngineId) -> Option<Link> {
        let shard = self.conns[c].shard;
        while let Some((link, since)) = self.shards[shard].pool[engine.index()].pop() {
            let is_old = self.now.since(since) >= Duration::from_secs(limits::POOL_IDLE_SECONDS);
            let is_quiet = self.net.readable_at(link.down) > self.now;
            if !is_old && is_quiet {
                return Some(link);
            }
            self.close_leg_socket(link);
        }
        None
    }

    pub fn drop_leg(&mut self, c: usize, slot: usize) {
        let shard = self.conns[c].shard;
        let leg = std::mem::take(&mut self.conns[c].legs[slot]);
        if let Some(link) = leg.link {
            if matches!(leg.step, LegStep::Sending { .. }) && on(&mut self.chance, 50) {
                let sent = self.net.buffered(link.up);
                let keep = self.chance.below(sent as u64 + 1) as usize;
                self.net.tear(link.up, keep);
            }
            self.close_leg_socket(link);
        }
        let (true, Some(engine)) = (leg.holds, leg.engine) else {
            return;
        };
        self.shards[shard].held[engine.index()] -= 1;
        for other in 0..self.conns.len() {
            let conn = &self.conns[other];
            let waits = |leg: &LegIo| leg.step == LegStep::Waiting && leg.engine == Some(engine);
            if conn.shard == shard && !conn.closed && conn.legs.iter().any(waits) {
                self.poke_waiter(other);
            }
        }
    }

    /// A connection whose leg waits looks again though nothing is ready for it.
    fn poke_waiter(&mut self, c: usize) {
        self.woken.push(c);
        self.poke(Wake::Conn(c), self.now);
    }

    /// Wake-ups without an event: wishes are looked at again.
    pub fn wake_waiters(&mut self, c: usize) {
        if let Some(at) = self.woken.iter().position(|w| *w == c) {
            self.woken.swap_remove(at);
            if !self.conns[c].closed {
                self.pump(c);
                self.pass_on(self.conns[c].shard);
                self.check_turn(c);
            }
        }
    }

    // ── mail ──

    /// Hands on what stages left for the control thread and for other shards.
    fn pass_on(&mut self, shard: usize) {
        while let Some(request) = self.shards[shard].shard.next_ask() {
            // Now and then it is too busy, or never answers.
            let delay = Duration::from_millis(pick(&mut self.chance, &[1, 30, 3_000, 60_000]));
            let to = request.token as usize - 1;
            let answer = Letter::Answer(Answer::not_found());
            self.post(shard, self.now + delay, to, answer);
        }
        while self.shards[shard].shard.next_note().is_some() {}
        while let Some((to, line)) = self.shards[shard].shard.next_wake() {
            if to == shard {
                let tokens = self.shards[shard].shard.fetch_grants(line);
                self.call(tokens);
            } else if !on(&mut self.chance, 10) {
                // What finds a full mailbox is lost; the other shard looks by itself, a little later.
                let delay = Duration::from_micros(pick(&mut self.chance, &[0, 20, 5_000]));
                self.post(to, self.now + delay, NOBODY, Letter::Granted(line));
            }
        }
    }

    pub fn post(&mut self, shard: usize, at: Instant, to: usize, letter: Letter) {
        self.shards[shard].mail.push((at, to, letter));
        self.queue_at(at, Wake::Mail(shard));
    }

    /// Tells connections to look.
    fn call(&mut self, tokens: Vec<u64>) {
        for token in tokens {
            let c = token as usize - 1;
            if !self.conns[c].closed {
                self.conns[c].look = true;
                self.poke(Wake::Conn(c), self.now);
            }
        }
    }

    /// A shard reads its mail: what is due, when the seed says so.
    pub fn mail_turn(&mut self, shard: usize) {
        let stalled = self.shards[shard].stalled_until;
        if stalled > self.now {
            return self.queue_at(stalled, Wake::Mail(shard));
        }
        let now = self.now;
        let due = |(at, _, _): &(Instant, usize, Letter)| *at <= now;
        while let Some(i) = self.shards[shard].mail.iter().position(due) {
            let (_, to, letter) = self.shards[shard].mail.remove(i);
            self.trace
                .step(self.now, Wake::Mail(shard), "delivered", to as u64);
            if let Letter::Granted(line) = letter {
                let tokens = self.shards[shard].shard.fetch_grants(line);
                self.call(tokens);
            } else if let Some(conn) = self.conns.get_mut(to).filter(|conn| !conn.closed) {
                conn.letter = Some(letter);
                self.poke(Wake::Conn(to), self.now);
            }
        }
        self.pass_on(shard);
    }

    /// What a shard does now and then: it looks around for what nobody told it, and notes how late it is. Goes on while somebody waits in
    /// a line.
    pub fn house_turn(&mut self, shard: usize) {
        let sim = &mut self.shards[shard];
        if sim.stalled_until > self.now {
            let at = sim.stalled_until;
            return self.queue_at(at, Wake::House(shard));
        }
        let late = self.now.since(sim.house_due);
        sim.shard.loop_delay = late;
        sim.shard.end_leases(self.now);
        sim.house_due = Instant::FAR;
        self.trace
            .step(self.now, Wake::House(shard), "late", late.as_nanos() as u64);
        for line in self.shards[shard].shard.lines() {
            let sim = &mut self.shards[shard];
            let mut tokens = sim.shard.fetch_grants(line);
            if line == Awaited::Seat && self.shared.held().is_some() {
                tokens.extend(sim.shard.waiting(line));
            }
            self.call(tokens);
        }
        self.pass_on(shard);
        if !late.is_zero() {
            self.keep_house(shard);
        }
        self.keep_house_if_needed(shard);
    }

    /// The next look around.
    pub fn keep_house(&mut self, shard: usize) {
        let sim = &mut self.shards[shard];
        if sim.house_due == Instant::FAR {
            sim.house_due = self.now + HOUSE_TICK;
            let at = sim.house_due;
            self.queue_at(at, Wake::House(shard));
        }
    }

    fn keep_house_if_needed(&mut self, shard: usize) {
        if !self.shards[shard].shard.lines().is_empty() {
            self.keep_house(shard);
        }
    }
}

/// A letter to the shard itself.
pub const NOBODY: usize = usize::MAX;
/// As the runtime's.
const HOUSE_TICK: Duration = Duration::from_millis(100);

impl Conn {
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }
}
