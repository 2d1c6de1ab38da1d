//! The control thread's part: monitoring passes with the router's own breakers, questions that engines answer as they are at that
//! moment, and operators who drain an engine, stop it when it may be stopped, start it again and readmit it.
//!
//! Checked on the way: a verdict takes no last engine of a role that can be reached; whoever is drained gets no new leg, and nothing
//! runs there when it may be stopped; when all is well again, everybody is back.

use std::time::Duration;

use narwhal::base::units::{EngineId, Phase, Role};
use narwhal::config::topology::EngineView;
use narwhal::fleet::breaker::{Answer, Question, Step};
use narwhal::path::peek::View;
use narwhal::shard::ward::{self, Ward};

use crate::faults::Fault;
use crate::plan::{Watch, on, pick};
use crate::world::{Event, World, engine_id};

/// What control does beside the shards.
pub struct Control {
    ward: Ward,
    watch: Watch,
    /// Questions under way.
    asking: Vec<(usize, u64, Answer)>,
    /// Where new work might have gone when this turn of the world began, by engine.
    open: Vec<bool>,
    /// Passes since everybody left.
    late_passes: u64,
}

/// Passes within which everybody is back, once all is well.
const LATE_PASSES_MAX: u64 = 4_000;

impl Control {
    pub fn new(watch: Watch, snapshot: &narwhal::config::Snapshot) -> Control {
        Control {
            ward: Ward::new(snapshot),
            watch,
            asking: Vec::new(),
            open: vec![true; snapshot.engines.len()],
            late_passes: 0,
        }
    }
}

impl World {
    pub fn control_begins(&mut self) {
        let Some(control) = &self.control else { return };
        let (first, drains) = (self.now + control.watch.interval, control.watch.drains);
        self.plan_event(first, Event::Pass);
        let span = self.plan.ends_after.as_nanos() as u64;
        for _ in 0..drains {
            let engine = self.chance.below(self.plan.engines.len() as u64) as usize;
            let at = self.now + Duration::from_nanos(self.chance.below(span));
            self.plan_event(at, Event::Withdraw(engine));
        }
    }

    // ── passes ──

    pub fn control_pass(&mut self) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        let snapshot = self.plan.snapshot.clone();
        let shared = self.shared.clone();
        let mut steps = Vec::new();
        control.ward.pass(&snapshot, &shared, self.now, &mut steps);
        let after = self.ejected();
        let here = |i: &usize| snapshot.engines[*i].is_here();
        for (i, is_out) in after.iter().enumerate().filter(|(i, _)| here(i)) {
            let out = control.ward.out(engine_id(i)).is_some();
            assert_eq!(out, *is_out, "the board and the rule differ on engine {i}");
        }
        for step in steps {
            self.trace.say(|| format!("{step:?}"));
            self.cover.ejections += u64::from(matches!(step, Step::Eject(..)));
            if let Step::Ask(engine, question, number) = step {
                let (answer, after) = self.heard(engine, question);
                control.asking.push((engine, number, answer));
                self.plan_event(self.now + after, Event::Answer(engine, number));
            }
        }
        // Requests that still run may take somebody out, and so may an answer.
        let runs = self.conns.iter().any(|conn| !conn.closed);
        let busy = runs || !control.asking.is_empty();
        if self.is_over() && !busy {
            control.late_passes += 1;
        }
        let next = self.now + control.watch.interval;
        let goes_on = !self.is_over() || busy || self.somebody_is_out();
        assert!(
            control.late_passes < LATE_PASSES_MAX,
            "nothing is wrong with it, and it does not come back: {after:?}"
        );
        self.control = Some(control);
        if goes_on {
            self.plan_event(next, Event::Pass);
        }
    }

    fn ejected(&self) -> Vec<bool> {
        let line = |i| self.shared.board.line(engine_id(i));
        let all = 0..self.shared.board.len();
        all.map(|i| line(i).is_ejected()).collect()
    }

    fn somebody_is_out(&self) -> bool {
        let out = |i| {
            let line = self.shared.board.line(engine_id(i));
            line.is_ejected() || line.is_held()
        };
        (0..self.shared.board.len()).any(out)
    }

    /// What comes of a question, and when. Faults end with the clients' last.
    fn heard(&mut self, engine: usize, question: Question) -> (Answer, Duration) {
        let soon = Duration::from_millis(pick(&mut self.chance, &[0, 2, 40]));
        if self.engine_is_down(engine) {
            return (Answer::Unreachable, soon);
        }
        if self.engine_is_frozen(engine).is_some() {
            return (Answer::Bad(Phase::Decode), Duration::from_millis(1_500));
        }
        let Question::Inference(phase) = question else {
            return (Answer::Good, soon);
        };
        if !self.is_over() {
            if self.engine_winds_down(engine) {
                return (Answer::Bad(phase), soon);
            }
            if on(&mut self.chance, 5) {
                return (Answer::Unasked, soon);
            }
            let fault = self.plan.faults.of_answer(&mut self.chance);
            if fault.is_some_and(|fault| !fault.is_harmless()) {
                return (Answer::Bad(phase), soon);
            }
        }
        (Answer::Good, soon)
    }

    pub fn control_hears(&mut self, engine: usize, number: u64) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        let is_it = |(e, n, _): &(usize, u64, Answer)| (*e, *n) == (engine, number);
        let at = control.asking.iter().position(is_it);
        let (_, _, answer) = control
            .asking
            .swap_remove(at.expect("asked once, heard once"));
        let (before, roles) = (self.ejected()[engine], self.roles_served());
        let snapshot = self.plan.snapshot.clone();
        let which = (engine_id(engine), number);
        let shared = self.shared.clone();
        let ward = &mut control.ward;
        let step = ward.take(&snapshot, &shared, self.now, which, answer);
        let after = self.ejected()[engine];
        self.trace.say(|| format!("{engine} {answer:?}: {step:?}"));
        if after && !before {
            self.cover.ejections += 1;
            let lost = roles != self.roles_served();
            let reached = matches!(answer, Answer::Bad(_));
            assert!(
                !lost || !reached,
                "a verdict took the last engine of a role"
            );
        }
        if before && !after {
            self.cover.readmissions += 1;
            assert_eq!(answer, Answer::Good);
        }
        self.control = Some(control);
    }

    /// Which roles somebody serves to whom new work may go.
    fn roles_served(&self) -> [bool; 2] {
        let snapshot = &self.plan.snapshot;
        let open = |id: EngineId| self.shared.board.line(id).available();
        [Role::Prefill, Role::Decode].map(|role| {
            let mut all = snapshot.engines.iter();
            all.any(|e| open(e.id) && ward::serves(snapshot, e, role))
        })
    }

    /// Another fleet.
    pub fn control_follows(
        &mut self,
        snapshot: &narwhal::config::Snapshot,
        anew: impl Fn(&EngineView) -> bool,
    ) {
        for engine in snapshot.engines.iter().filter(|e| anew(e)) {
            self.shared.board.line(engine.id).set_live(true);
        }
        if let Some(control) = &mut self.control {
            control.ward.follow(snapshot, anew);
        }
    }

    // ── operators ──

    /// An operator drains an engine, to start it anew.
    pub fn control_withdraws(&mut self, engine: usize) {
        let line = self.shared.board.line(engine_id(engine));
        if line.is_held() || line.is_away() {
            return;
        }
        line.set_held(true);
        self.plan_event(self.now, Event::Emptied(engine));
    }

    /// Looks whether it may be stopped, and stops it.
    pub fn control_stops(&mut self, engine: usize) {
        if self.shared.board.line(engine_id(engine)).resident() > 0 {
            let next = self.now + Duration::from_millis(20);
            return self.plan_event(next, Event::Emptied(engine));
        }
        for host in &self.hosts {
            let works =
                host.engine == engine && host.generates() && !self.net.is_deaf(host.link.down);
            // Whose client has left, its leg still drains.
            let wanted = self.conns.iter().any(|conn| {
                let legs = conn.legs.iter().zip(&conn.view.legs);
                let mut of_it = legs.filter(|(io, _)| io.link == Some(host.link));
                of_it.any(|(_, leg)| leg.state != narwhal::path::leg::State::Draining)
            });
            assert!(!works || !wanted, "ready to stop, and a stream runs there");
        }
        self.cover.stops += 1;
        let until = self.now + Duration::from_millis(1 + self.chance.below(800));
        self.engine_stops(engine, until);
        self.plan_event(until, Event::Readmit(engine));
    }

    /// It is another process now, and well.
    pub fn control_readmits(&mut self, engine: usize) {
        if self.engine_is_down(engine) {
            let next = self.now + Duration::from_millis(20);
            return self.plan_event(next, Event::Readmit(engine));
        }
        self.shared.board.line(engine_id(engine)).readmit();
    }

    // ── after every step ──

    /// Before anything happens in this turn.
    pub fn note_open(&mut self) {
        if let Some(control) = &mut self.control {
            for (i, open) in control.open.iter_mut().enumerate() {
                let line = self.shared.board.line(engine_id(i));
                *open =
                    line.is_live() && !line.is_ejected() && !line.is_evicted() && !line.is_held();
            }
        }
    }

    /// A leg is placed where new work may go, nowhere else.
    pub fn check_placed(&self, before: &View, after: &View) {
        let Some(control) = &self.control else { return };
        for engine in placed(before, after) {
            assert!(
                control.open[engine.index()],
                "a leg goes to {engine:?}, which is out"
            );
        }
    }

    /// Everybody has left and all faults are over.
    pub fn check_control(&self) {
        let Some(control) = &self.control else { return };
        assert!(control.asking.is_empty());
        assert!(!self.somebody_is_out(), "somebody never came back");
    }
}

/// Where a step has placed a leg.
pub fn placed(before: &View, after: &View) -> impl Iterator<Item = EngineId> {
    let of = |view: &View| {
        let held = view.exchange;
        [
            held.and_then(|held| held.prefill),
            held.and_then(|held| held.decode),
        ]
    };
    let legs = of(before).into_iter().zip(of(after));
    legs.filter(|(old, new)| old != new)
        .filter_map(|(_, new)| new)
}

impl Fault {
    /// Engines with it answer as they should in the end.
    fn is_harmless(self) -> bool {
        use Fault::*;
        matches!(
            self,
            Slow | UntilClose | Closes | Interim | TrailingBytes | ShortIdle
        )
    }
}
