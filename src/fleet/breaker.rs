//! Which engines fail, and what is done about it: a breaker for each engine and class of failure.
//!
//! Requests bring the evidence: failures of a class in a row, a served leg ends the row. Some classes say that an engine cannot be
//! reached, and take it out at once; the others are suspicion only (the request, its partner or the network may be to blame) and are
//! verified by a question of our own. Whoever is out is asked again from time to time and comes back with a good answer.
//!
//! Pure: a pass is handed what was heard, and hands out [`Step`]s; whoever asked a question brings its answer to
//! [`Breaker::answered`]. Invariants: an engine has at most one question open; the last available engine of a role goes out only when
//! it cannot be reached.

use std::time::Duration;

use crate::base::time::Instant;
use crate::base::units::Phase;
use crate::base::words::words;

words! {
    /// What a failure says about an engine.
    FaultClass {
        /// No connection, or one that broke.
        Connection = "connection",
        Timeout = "timeout",
        /// It said 429 or 503.
        Overload = "overload",
        /// It said 408 or another 5xx.
        InferenceStatus = "inference_status",
        /// Its prefill answer held no usable handoff.
        KvHandoff = "kv_handoff",
        /// Its stream was no answer.
        Stream = "stream",
        /// It misses its health probes.
        Liveness = "liveness",
    }
}

impl FaultClass {
    /// Whether nothing gets through to the engine, so that it is of no use even as the last one.
    pub const fn is_unreachable(self) -> bool {
        matches!(self, FaultClass::Connection | FaultClass::Liveness)
    }

    /// What verifies the suspicion, and what has to be answered before an engine comes back.
    pub const fn question(self, phase: Phase) -> Question {
        match self {
            // Whether it is there, or says that it has more than enough to do.
            FaultClass::Connection | FaultClass::Liveness | FaultClass::Overload => {
                Question::Health
            }
            // `/health` answers 200 while nothing is generated (vLLM 0.32.0), so only a token tells.
            _ => Question::Inference(phase),
        }
    }
}

/// What an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// `GET /health`.
    Health,
    /// A prompt read and handed over, or a token generated of one.
    Inference(Phase),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    /// In that phase.
    Bad(Phase),
    /// Nobody was there to be asked.
    Unreachable,
    /// It could not be asked, for want of a healthy partner: nothing is known.
    Unasked,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Failures of one class in a row.
    pub eject_after: u32,
    /// Passes between two questions to an engine that is out; 0: it is not asked.
    pub readmit_every: u32,
    /// How long an engine is out at least.
    pub quarantine: Duration,
}

/// Failures in a row, by phase and class.
pub type Rows = [[u32; FaultClass::COUNT]; Phase::COUNT];

/// One engine at a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    pub rows: Rows,
    /// Operators want it to empty: it is left alone.
    pub held: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The number comes back with the answer.
    Ask(usize, Question, u64),
    Eject(usize, FaultClass),
    /// It failed, and is the last of its role.
    Spare(usize, FaultClass),
    /// What was suspected is not so: its rows begin anew.
    Clear(usize, FaultClass),
    Readmit(usize, FaultClass),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    In,
    Suspect(FaultClass),
    Out {
        class: FaultClass,
        phase: Phase,
        since: Instant,
        passes: u32,
    },
}

/// All engines.
#[derive(Debug)]
pub struct Breaker {
    rules: Rules,
    engines: Vec<State>,
    /// The question to each that counts, if one is open.
    open: Vec<Option<u64>>,
    asked: u64,
}

impl Breaker {
    pub fn new(rules: Rules, engines: usize) -> Breaker {
        Breaker {
            rules,
            engines: vec![State::In; engines],
            open: vec![None; engines],
            asked: 0,
        }
    }

    /// Other rules, and as many engines as are said, of which those with a true one begin anew.
    pub fn follow(&mut self, rules: Rules, forget: impl IntoIterator<Item = bool>) {
        self.rules = rules;
        for (engine, forget) in forget.into_iter().enumerate() {
            if engine >= self.engines.len() {
                self.engines.push(State::In);
                self.open.push(None);
            } else if forget {
                self.engines[engine] = State::In;
                // An answer that is still to come is to a question that nobody asked.
                self.open[engine] = None;
            }
        }
    }

    /// Why the engine is out.
    pub fn out(&self, engine: usize) -> Option<FaultClass> {
        match self.engines[engine] {
            State::Out { class, .. } => Some(class),
            _ => None,
        }
    }

    /// Looks at all engines; what is to be done is added to `steps`.
    pub fn pass(&mut self, now: Instant, looks: &[Look], steps: &mut Vec<Step>) {
        for (engine, look) in looks.iter().enumerate().take(self.engines.len()) {
            if look.held {
                continue;
            }
            let step = match self.engines[engine] {
                State::In => self.suspect(now, engine, look),
                State::Suspect(_) => None,
                State::Out { .. } => self.try_again(now, engine),
            };
            steps.extend(step);
        }
    }

    /// The first class whose row is long enough. Those that cannot be reached come first.
    fn suspect(&mut self, now: Instant, engine: usize, look: &Look) -> Option<Step> {
        let phases = [Phase::Prefill, Phase::Decode];
        let all = FaultClass::ALL.iter();
        let mut all = all.flat_map(|class| phases.map(|phase| (*class, phase)));
        let row = |(class, phase): &(FaultClass, Phase)| look.rows[*phase as usize][class.index()];
        let (class, phase) = all.find(|which| row(which) >= self.rules.eject_after)?;
        if class.is_unreachable() {
            return Some(self.eject(now, engine, class, phase));
        }
        self.engines[engine] = State::Suspect(class);
        Some(self.ask(engine, class.question(phase)))
    }

    fn ask(&mut self, engine: usize, question: Question) -> Step {
        self.asked += 1;
        self.open[engine] = Some(self.asked);
        Step::Ask(engine, question, self.asked)
    }

    fn try_again(&mut self, now: Instant, engine: usize) -> Option<Step> {
        let (rules, is_asked) = (self.rules, self.open[engine].is_some());
        let State::Out {
            class,
            phase,
            since,
            passes,
        } = &mut self.engines[engine]
        else {
            return None;
        };
        *passes = passes.saturating_add(1);
        let due = rules.readmit_every > 0 && *passes >= rules.readmit_every;
        if is_asked || !due || now.since(*since) < rules.quarantine {
            return None;
        }
        *passes = 0;
        let question = class.question(*phase);
        Some(self.ask(engine, question))
    }

    fn eject(&mut self, now: Instant, engine: usize, class: FaultClass, phase: Phase) -> Step {
        self.open[engine] = None;
        self.engines[engine] = State::Out {
            class,
            phase,
            since: now,
            passes: 0,
        };
        Step::Eject(engine, class)
    }

    /// Takes it out for what somebody else has seen: a shard, a file of an earlier life. `phase` is the one that it has to show.
    /// `None` when it is out.
    pub fn take_out(
        &mut self,
        now: Instant,
        engine: usize,
        (class, phase): (FaultClass, Phase),
    ) -> Option<Step> {
        match self.out(engine) {
            Some(_) => None,
            None => Some(self.eject(now, engine, class, phase)),
        }
    }

    /// Takes it back for what somebody else has seen, an operator.
    pub fn take_in(&mut self, engine: usize) -> Option<Step> {
        let class = self.out(engine)?;
        self.open[engine] = None;
        self.engines[engine] = State::In;
        Some(Step::Readmit(engine, class))
    }

    /// The answer to a [`Step::Ask`] of that number. Answers to questions that are no longer open change nothing.
    pub fn answered(
        &mut self,
        now: Instant,
        (engine, number): (usize, u64),
        answer: Answer,
        can_be_spared: bool,
    ) -> Option<Step> {
        if self.open[engine] != Some(number) {
            return None;
        }
        self.open[engine] = None;
        match (self.engines[engine], answer) {
            (State::In, _) => None,
            (State::Suspect(class), Answer::Good | Answer::Unasked) => {
                self.engines[engine] = State::In;
                Some(Step::Clear(engine, class))
            }
            (State::Suspect(_), Answer::Unreachable) => {
                let class = FaultClass::Connection;
                Some(self.eject(now, engine, class, Phase::Decode))
            }
            (State::Suspect(class), Answer::Bad(phase)) => {
                if can_be_spared {
                    return Some(self.eject(now, engine, class, phase));
                }
                self.engines[engine] = State::In;
                Some(Step::Spare(engine, class))
            }
            (State::Out { .. }, Answer::Good) => self.take_in(engine),
            (State::Out { .. }, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FaultClass::*;

    const RULES: Rules = Rules {
        eject_after: 3,
        readmit_every: 2,
        quarantine: Duration::from_secs(5),
    };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn rows(of: &[(FaultClass, u32)]) -> Rows {
        let mut rows = Rows::default();
        for (class, row) in of {
            rows[Phase::Decode as usize][class.index()] = *row;
        }
        rows
    }

    fn pass(breaker: &mut Breaker, now: Instant, of: &[(FaultClass, u32)]) -> Vec<Step> {
        let mut steps = Vec::new();
        let look = Look {
            rows: rows(of),
            held: false,
        };
        breaker.pass(now, &[look], &mut steps);
        steps
    }

    // proves R-CTL-3, R-CTL-7
    #[test]
    fn who_was_taken_out_by_others_shows_what_it_is_there_for() {
        for phase in [Phase::Prefill, Phase::Decode] {
            let mut breaker = Breaker::new(RULES, 1);
            breaker.take_out(at(0), 0, (Stream, phase));
            let asked: Vec<Step> = (0..8)
                .flat_map(|pass_at| pass(&mut breaker, at(pass_at), &[]))
                .collect();
            assert_eq!(asked, [Step::Ask(0, Question::Inference(phase), 1)]);
        }
    }

    // proves R-CTL-3
    #[test]
    fn what_a_row_of_failures_leads_to() {
        let ask = |question| vec![Step::Ask(0, question, 1)];
        type Row<'a> = (&'a [(FaultClass, u32)], Vec<Step>);
        let table: &[Row] = &[
            (&[], vec![]),
            (&[(Connection, 2), (Stream, 2), (Timeout, 2)], vec![]),
            (&[(Connection, 3)], vec![Step::Eject(0, Connection)]),
            (&[(Liveness, 3)], vec![Step::Eject(0, Liveness)]),
            (
                &[(Stream, 9), (Connection, 3)],
                vec![Step::Eject(0, Connection)],
            ),
            (&[(Overload, 3)], ask(Question::Health)),
            (&[(Timeout, 3)], ask(Question::Inference(Phase::Decode))),
            (
                &[(InferenceStatus, 4)],
                ask(Question::Inference(Phase::Decode)),
            ),
            (&[(KvHandoff, 3)], ask(Question::Inference(Phase::Decode))),
            (&[(Stream, 3)], ask(Question::Inference(Phase::Decode))),
        ];
        for (of, want) in table {
            let mut breaker = Breaker::new(RULES, 1);
            assert_eq!(pass(&mut breaker, at(0), of), *want, "{of:?}");
            let again = pass(&mut breaker, at(1), of);
            let asked = matches!(want[..], [] | [Step::Ask(..) | Step::Eject(..)]);
            assert!(asked && again.is_empty(), "one question at a time: {of:?}");
        }
    }

    /// Rows: the class, the answer, whether the engine can be spared, what follows.
    // proves R-CTL-3
    #[test]
    fn what_an_answer_leads_to() {
        let table = [
            (Stream, Answer::Good, true, Step::Clear(0, Stream)),
            (Stream, Answer::Good, false, Step::Clear(0, Stream)),
            (Stream, Answer::Unasked, true, Step::Clear(0, Stream)),
            (
                Stream,
                Answer::Bad(Phase::Decode),
                true,
                Step::Eject(0, Stream),
            ),
            (
                Stream,
                Answer::Bad(Phase::Decode),
                false,
                Step::Spare(0, Stream),
            ),
            (
                Overload,
                Answer::Bad(Phase::Decode),
                true,
                Step::Eject(0, Overload),
            ),
            (
                Timeout,
                Answer::Unreachable,
                true,
                Step::Eject(0, Connection),
            ),
            (
                Timeout,
                Answer::Unreachable,
                false,
                Step::Eject(0, Connection),
            ),
        ];
        for (class, answer, spared, want) in table {
            let mut breaker = Breaker::new(RULES, 1);
            assert_eq!(
                breaker.answered(at(0), (0, 1), answer, spared),
                None,
                "not asked"
            );
            pass(&mut breaker, at(0), &[(class, 3)]);
            let step = breaker.answered(at(1), (0, 1), answer, spared);
            assert_eq!(step, Some(want), "{class} {answer:?} {spared}");
            assert_eq!(breaker.out(0).is_some(), matches!(want, Step::Eject(..)));
            assert_eq!(
                breaker.answered(at(1), (0, 1), answer, spared),
                None,
                "answered"
            );
        }
    }

    // proves R-CTL-3
    #[test]
    fn the_way_back() {
        let mut breaker = Breaker::new(RULES, 1);
        pass(&mut breaker, at(0), &[(Connection, 3)]);
        assert_eq!(breaker.out(0), Some(Connection));
        // Every second pass, but not before the quarantine is over.
        assert_eq!(pass(&mut breaker, at(1), &[]), []);
        assert_eq!(pass(&mut breaker, at(4), &[]), []);
        assert_eq!(
            pass(&mut breaker, at(5), &[]),
            [Step::Ask(0, Question::Health, 1)]
        );
        assert_eq!(pass(&mut breaker, at(6), &[]), [], "it is asked");
        assert_eq!(pass(&mut breaker, at(7), &[]), []);
        assert_eq!(
            breaker.answered(at(8), (0, 1), Answer::Unreachable, true),
            None
        );
        let ask = [Step::Ask(0, Question::Health, 2)];
        assert_eq!(
            pass(&mut breaker, at(9), &[]),
            ask,
            "passes since it was asked"
        );
        let back = Some(Step::Readmit(0, Connection));
        assert_eq!(breaker.answered(at(9), (0, 2), Answer::Good, true), back);
        assert_eq!(breaker.out(0), None);
        assert_eq!(pass(&mut breaker, at(10), &[]), []);
    }

    #[test]
    fn nobody_is_asked_back_when_the_file_says_so() {
        let never = Rules {
            readmit_every: 0,
            quarantine: Duration::ZERO,
            ..RULES
        };
        let mut breaker = Breaker::new(never, 1);
        assert_eq!(
            breaker.take_out(at(0), 0, (Liveness, Phase::Decode)),
            Some(Step::Eject(0, Liveness))
        );
        assert_eq!(breaker.take_out(at(0), 0, (Stream, Phase::Decode)), None);
        for second in 1..50 {
            assert_eq!(pass(&mut breaker, at(second), &[]), []);
        }
        assert_eq!(breaker.take_in(0), Some(Step::Readmit(0, Liveness)));
        assert_eq!(breaker.take_in(0), None);
    }

    /// Each phase has rows of its own, and each question its own answer.
    // proves R-CTL-3
    #[test]
    fn phases_and_questions_are_told_apart() {
        let mut breaker = Breaker::new(RULES, 1);
        let mut look = Look::default();
        look.rows[Phase::Prefill as usize][Stream.index()] = 2;
        look.rows[Phase::Decode as usize][Stream.index()] = 2;
        let mut steps = Vec::new();
        breaker.pass(at(0), &[look], &mut steps);
        assert_eq!(steps, []);
        look.rows[Phase::Prefill as usize][Stream.index()] = 3;
        breaker.pass(at(0), &[look], &mut steps);
        let prefill = Question::Inference(Phase::Prefill);
        assert_eq!(steps, [Step::Ask(0, prefill, 1)]);
        // A shard takes it out meanwhile: the answer to the old question says nothing of the new one.
        assert!(
            breaker
                .take_out(at(1), 0, (Connection, Phase::Decode))
                .is_some()
        );
        assert_eq!(pass(&mut breaker, at(6), &[]), []);
        let again = pass(&mut breaker, at(7), &[]);
        assert_eq!(again, [Step::Ask(0, Question::Health, 2)]);
        assert_eq!(breaker.answered(at(8), (0, 1), Answer::Good, true), None);
        let back = Some(Step::Readmit(0, Connection));
        assert_eq!(breaker.answered(at(8), (0, 2), Answer::Good, true), back);
    }

    #[test]
    fn who_is_held_is_left_alone() {
        let mut breaker = Breaker::new(RULES, 1);
        let look = Look {
            rows: rows(&[(Connection, 9), (Stream, 9)]),
            held: true,
        };
        let mut steps = Vec::new();
        breaker.pass(at(0), &[look], &mut steps);
        assert_eq!(steps, []);
        breaker.take_out(at(0), 0, (Stream, Phase::Decode));
        for second in 6..20 {
            breaker.pass(at(second), &[look], &mut steps);
        }
        assert_eq!(steps, []);
    }
}
