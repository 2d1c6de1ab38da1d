//! Many clients at once, each with a temper: some read all they asked for, some leave at any moment, some pipeline, some dawdle.
//! All look at every byte that they get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use narwhal::base::prng::Prng;

use super::ask::{Ask, Outcome};
use super::client::{Answer, Client};
use super::engine::lock;
use super::world::World;

/// A kind of crowd; shares are in hundredths.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    pub clients: usize,
    pub seed: u64,
    pub tokens_max: u64,
    pub leave: u64,
    pub dawdle: u64,
    pub pipeline: u64,
    /// How long an answer may take.
    pub patience: Duration,
    /// Every id that the router gives is kept, and must be a new one.
    pub ids: bool,
}

impl Crowd {
    /// Who all read to the end.
    pub const POLITE: Crowd = Crowd {
        clients: 24,
        seed: 1,
        tokens_max: 40,
        leave: 0,
        dawdle: 0,
        pipeline: 0,
        patience: Duration::from_secs(60),
        ids: true,
    };
}

/// What they got.
#[derive(Debug, Default)]
pub struct Tally {
    pub exchanges: u64,
    pub outcomes: BTreeMap<Outcome, u64>,
    pub left: u64,
    /// What they were refused with.
    refusals: Vec<String>,
    /// Milliseconds of each exchange that was read to its end.
    pub times_ms: Vec<u32>,
    keeps_ids: bool,
    ids: BTreeSet<String>,
}

impl Tally {
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or(0)
    }

    /// Fails when somebody got a status that is not one of these, 200 aside.
    pub fn assert_refusals(&self, row: &str, allowed: &[u16]) {
        let refusals = &self.refusals[..self.refusals.len().min(5)];
        for outcome in self.outcomes.keys() {
            if let Outcome::Refused(status) = outcome {
                assert!(
                    allowed.contains(status),
                    "{row}: {status} in {:?}: {refusals:?}",
                    self.outcomes
                );
            }
        }
    }

    fn note(&mut self, answer: &Answer, outcome: Outcome, begun: Instant) {
        self.exchanges += 1;
        if let Outcome::Refused(_) = outcome {
            self.refusals.push(answer.text());
        }
        *self.outcomes.entry(outcome).or_default() += 1;
        let ms = u32::try_from(begun.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.times_ms.push(ms);
        let id = answer.header("x-request-id");
        let id = id.expect("every answer has one").to_owned();
        if self.keeps_ids {
            assert!(!self.ids.contains(&id), "{id} was given before");
            self.ids.insert(id);
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.exchanges += other.exchanges;
        self.left += other.left;
        self.refusals.extend(other.refusals);
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.times_ms.extend(other.times_ms);
        for id in other.ids {
            assert!(!self.ids.contains(&id), "{id} was given twice");
            self.ids.insert(id);
        }
    }
}

/// Lets them ask while `more` says so; it is told how many exchanges were begun before.
pub fn crowd(world: &World, crowd: Crowd, more: impl Fn(u64) -> bool + Sync) -> Tally {
    let begun = AtomicU64::new(0);
    let all = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for n in 0..crowd.clients {
            let (begun, more, all) = (&begun, &more, &all);
            scope.spawn(move || {
                let mut person = Person {
                    world,
                    crowd,
                    chance: Prng::new(crowd.seed << 20 | n as u64),
                    kept: None,
                    tally: Tally {
                        keeps_ids: crowd.ids,
                        ..Tally::default()
                    },
                };
                while more(begun.fetch_add(1, Relaxed)) {
                    person.exchange();
                }
                lock(all).add(person.tally);
            });
        }
    });
    all.into_inner().expect("nobody panicked")
}

struct Person<'a> {
    world: &'a World,
    crowd: Crowd,
    chance: Prng,
    kept: Option<Client>,
    tally: Tally,
}

impl Person<'_> {
    fn is(&mut self, hundredths: u64) -> bool {
        self.chance.below(100) < hundredths
    }

    fn ask(&mut self) -> Ask {
        let tokens = 1 + self.chance.below(self.crowd.tokens_max);
        Ask::new(&mut self.chance, tokens)
    }

    fn exchange(&mut self) {
        let mut client = self.kept.take().unwrap_or_else(|| self.world.connect());
        let ask = self.ask();
        let begun = Instant::now();
        if self.is(self.crowd.leave) {
            self.tally.exchanges += 1;
            self.tally.left += 1;
            return self.leaves(client, &ask);
        }
        if self.is(self.crowd.pipeline) {
            let next = self.ask();
            client.send(&[ask.wire(), next.wire()].concat());
            let both = [&ask, &next].map(|ask| (ask, client.answer_within(self.crowd.patience)));
            for (ask, answer) in &both {
                let outcome = ask.check(answer);
                self.tally.note(answer, outcome, begun);
            }
            return self.keep(client, &both[1].1);
        }
        client.send(&ask.wire());
        if self.is(self.crowd.dawdle) {
            let pause = Duration::from_millis(self.chance.below(40));
            thread::park_timeout(pause);
        }
        let answer = client.answer_within(self.crowd.patience);
        let outcome = ask.check(&answer);
        self.tally.note(&answer, outcome, begun);
        self.keep(client, &answer);
    }

    /// Mostly the connection is used again.
    fn keep(&mut self, client: Client, answer: &Answer) {
        let closed = client.eof || answer.header("connection") == Some("close");
        if !closed && self.is(85) {
            assert!(client.buf.is_empty(), "bytes behind an answer");
            self.kept = Some(client);
        }
    }

    /// Somewhere in the request, before the answer, or within it.
    fn leaves(&mut self, mut client: Client, ask: &Ask) {
        let wire = ask.wire();
        match self.chance.below(4) {
            0 => client.send(&wire[..self.chance.below(wire.len() as u64) as usize]),
            1 => client.send(&wire),
            2 => {
                client.send(&wire);
                client.more(Duration::from_micros(self.chance.below(4000)));
            }
            _ => {
                client.send(&wire);
                let bytes = 1 + self.chance.below(3000) as usize;
                let answer = client.begin_answer(bytes);
                ask.check_part(&answer);
            }
        }
        match self.chance.below(3) {
            0 => client.reset(),
            1 => {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
            _ => {
                client.half_close();
                // What still comes is this request's, or nothing.
                client.ends_within(self.crowd.patience);
            }
        }
    }
}
