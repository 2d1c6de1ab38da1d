//! Seeded runs, and by hand what runs have found.

use std::time::Duration;

use super::*;
use crate::base::limits;
use crate::base::prng::Prng;
use crate::metrics::outcome::Outcome;
use crate::path::accept::Front;
use crate::path::leg::State;

mod teaching;

/// Engines that do both legs, prompts estimated: one leg a request.
const ONE_LEG: usize = 1;

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n";
const HEAD: &[u8] = b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 29\r\n\r\n";
const BODY: &[u8] = br#"{"prompt":"hi","stream":true}"#;

fn tape(seed: u64, len: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..prng.below(len)).map(|_| prng.u64() as u8).collect()
}

#[test]
fn same_tape_same_trace() {
    for seed in 0..50 {
        let data = tape(seed, 300);
        assert_eq!(run(&data), run(&data), "seed {seed}");
    }
}

// proves R-HTTP-5, R-ADM-1
#[test]
fn books_balance_whatever_happens() {
    for seed in 1_000..3_000 {
        println!("seed {seed}");
        fuzz(&tape(seed, 400));
    }
}

/// A world where every engine answers well.
struct Calm(World);

impl Calm {
    fn new(fleet: usize) -> Self {
        let mut calm = Calm(World::new(fleet));
        calm.then(|_| {});
        calm
    }

    fn then(&mut self, event: impl FnOnce(&mut World)) {
        event(&mut self.0);
        self.0.pump(&mut Tape::new(&[]));
        self.0.check();
    }

    fn asks(&mut self, bytes: &[u8]) {
        self.then(|w| {
            w.upload(bytes);
            w.deliver(usize::MAX);
        });
    }

    /// A stream is out up to its `[DONE]`; the last chunk is not.
    fn streams_but_the_last_chunk(&mut self) {
        self.asks(&[HEAD, BODY].concat());
        let len = self.0.legs[0].as_ref().unwrap().answer.bytes.len();
        self.then(|w| w.leg_step(0, 0));
        self.then(|w| w.leg_step(0, 0));
        self.then(|w| w.leg_step(0, len - 5));
        self.then(|w| w.client_takes(usize::MAX));
        assert_eq!(self.0.conn.legs[0].state, State::Draining);
        assert_eq!(self.ended(Outcome::Served), 1);
    }

    fn settles(&mut self) {
        settle(&mut self.0, &mut Tape::new(&[]));
    }

    fn ended(&self, outcome: Outcome) -> u64 {
        self.0.shard.ledger.snapshot().outcome(outcome)
    }
}

/// What a leg still said behind `[DONE]` was given to the request that the client had begun meanwhile, which then failed on it.
#[test]
fn a_draining_leg_says_nothing_to_the_next_exchange() {
    type End = (&'static str, fn(&mut World));
    let ends: [End; 4] = [
        ("last chunk", |w| w.leg_step(0, usize::MAX)),
        ("closes", |w| w.leg_eof(0)),
        ("breaks", |w| w.leg_breaks(0)),
        ("nonsense", |w| w.leg_raw(0, b"9\r\ndata: {}\n")),
    ];
    for (name, end) in ends {
        let mut calm = Calm::new(ONE_LEG);
        calm.streams_but_the_last_chunk();
        calm.asks(HEAD);
        calm.then(end);
        assert_eq!(calm.0.conn.front, Front::Body, "{name}");
        calm.then(|w| w.advance(Duration::from_secs(2)));
        calm.asks(BODY);
        calm.settles();
        assert_eq!(calm.ended(Outcome::Served), 2, "{name}");
    }
}

/// The end of the next exchange took the bound of a leg that was still draining, so an engine that never
/// ended its answer kept the leg and the connection's task for ever.
#[test]
fn a_draining_leg_is_bounded_whatever_follows() {
    let mut calm = Calm::new(ONE_LEG);
    calm.streams_but_the_last_chunk();
    calm.asks(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n[]");
    assert_eq!(calm.ended(Outcome::Invalid), 1);
    calm.then(|w| w.client_takes(usize::MAX));
    calm.then(World::client_leaves);
    calm.then(|w| w.advance(Duration::from_millis(limits::DRAIN_MILLIS)));
    assert!(calm.0.is_closed());
}

/// The pause before a retry and the write stall ended in one wake-up: the leg was opened for a client that had been cut.
// proves R-HTTP-5
#[test]
fn no_leg_is_opened_for_a_client_that_was_cut() {
    let mut calm = Calm::new(ONE_LEG);
    calm.asks(HEALTH);
    calm.asks(&[HEAD, BODY].concat());
    calm.then(|w| w.leg_breaks(0));
    assert!(calm.0.is_busy() && calm.0.legs[0].is_none());
    calm.then(|w| w.advance(Duration::from_secs(60)));
    assert!(calm.0.is_closed());
    assert_eq!(calm.ended(Outcome::Cancelled), 1);
}

/// The two seconds of a closing connection, and the idle time of a kept one, ran while the client was still taking its answer.
// proves R-HTTP-7, R-HTTP-8
#[test]
fn a_client_that_reads_is_not_cut() {
    let closing = b"GET /health HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n";
    for (request, pause) in [(&closing[..], 1_500), (HEALTH, 20_000)] {
        let mut calm = Calm::new(ONE_LEG);
        calm.asks(request);
        for _ in 0..8 {
            calm.then(|w| w.advance(Duration::from_millis(pause)));
            calm.then(|w| w.client_takes(1));
            assert!(!calm.0.client.torn, "after {pause} ms");
        }
        calm.then(|w| w.client_takes(usize::MAX));
        calm.then(|w| w.advance(Duration::from_millis(1_900)));
        assert!(!calm.0.is_closed());
        calm.then(|w| w.advance(Duration::from_secs(75)));
        calm.0.check_rest();
    }
}

/// A credit was spent where there was no time left for another attempt.
// proves R-FLT-4
#[test]
fn a_retry_that_would_come_too_late_costs_no_credit() {
    let mut calm = Calm::new(ONE_LEG);
    let mut snapshot = (*calm.0.shard.snapshot).clone();
    let serving = &mut snapshot.fleet.serving;
    serving.retry_base = Duration::from_secs(1_000_000);
    serving.retry_cap = serving.retry_base;
    calm.0.shard.shared.retries.set_most(1.0);
    calm.0.shard.snapshot = std::sync::Arc::new(snapshot);
    calm.asks(&[HEAD, BODY].concat());
    calm.then(|w| w.leg_breaks(0));
    assert_eq!(calm.ended(Outcome::Failed), 1);
    assert!(calm.0.shard.shared.retries.take(), "it is still there");
}

/// One that takes nothing is dropped.
// proves R-HTTP-7
#[test]
fn a_client_that_takes_nothing_is_cut() {
    let mut calm = Calm::new(ONE_LEG);
    calm.asks(HEALTH);
    calm.then(|w| w.advance(Duration::from_secs(29)));
    assert!(!calm.0.is_closed());
    calm.then(|w| w.advance(Duration::from_secs(2)));
    assert!(calm.0.is_closed());
}

/// A finished answer was under no retention and no deadline: whoever took it byte by byte held it for as long as it liked, and room was
/// given away that was not there.
// proves R-ADM-1, R-ADM-8
#[test]
fn an_answer_is_retained_until_its_client_has_it() {
    for takes in [true, false] {
        let mut calm = Calm::new(ONE_LEG);
        let mut snapshot = (*calm.0.shard.snapshot).clone();
        snapshot.fleet.serving.max_response_bytes = 1 << 20;
        let deadline = snapshot.fleet.serving.request_timeout;
        calm.0.shard.snapshot = std::sync::Arc::new(snapshot);
        let body = br#"{"prompt":"hi"}"#;
        let head = b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 15\r\n\r\n";
        calm.asks(&[&head[..], body].concat());
        calm.then(|w| w.leg_step(0, 0));
        calm.then(|w| w.leg_step(0, 0));
        let text = "x".repeat(200_000);
        let stream = format!(
            "data: {{\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
             \"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":\"stop\",\"token_ids\":[1]}}]}}\n\ndata: [DONE]\n\n"
        );
        let length = stream.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{stream}"
        );
        calm.then(|w| w.leg_raw(0, answer.as_bytes()));
        let ends = |calm: &Calm| [Outcome::Served, Outcome::Cancelled].map(|end| calm.ended(end));
        assert_eq!(ends(&calm), [0, 0], "it is on its way");
        let shared = calm.0.shard.shared.clone();
        assert_eq!((shared.seats.held(), shared.retained.held()), (0, 1));
        // What comes next waits for it.
        calm.asks(HEALTH);
        let answers = |calm: &Calm| {
            let got = String::from_utf8_lossy(&calm.0.client.received).into_owned();
            got.matches("HTTP/1.1 200").count()
        };
        if takes {
            calm.then(|w| w.client_takes(100_000));
            assert_eq!((answers(&calm), shared.retained.held()), (1, 1));
            calm.then(|w| w.client_takes(usize::MAX));
            calm.then(|w| w.client_takes(usize::MAX));
            assert_eq!((answers(&calm), shared.retained.held()), (2, 0));
            assert_eq!(ends(&calm), [1, 0]);
        } else {
            let step = Duration::from_secs(20);
            for _ in 0..=deadline.as_secs() / step.as_secs() {
                assert_eq!(u64::from(!calm.0.is_closed()), shared.retained.held());
                calm.then(|w| w.client_takes(1));
                calm.then(|w| w.advance(step));
            }
            assert!(calm.0.is_closed());
            assert_eq!(shared.retained.held(), 0);
            assert_eq!(ends(&calm), [0, 1], "the client never had it");
        }
    }
}

/// Reading stopped at the pipeline's bound, in the middle of a head that its own limit allowed.
// proves R-HTTP-3
#[test]
fn a_head_may_be_as_long_as_its_limit() {
    let mut calm = Calm::new(ONE_LEG);
    let mut snapshot = (*calm.0.shard.snapshot).clone();
    snapshot.fleet.runtime.max_header_bytes = 1 << 20;
    calm.0.shard.snapshot = std::sync::Arc::new(snapshot);
    calm.0.conn = crate::path::accept::Connection::new(&mut calm.0.shard, calm.0.now, 1, true);
    let field = format!("x: {}\r\n", "y".repeat(300_000));
    calm.0
        .upload(&[&HEALTH[..HEALTH.len() - 2], field.as_bytes(), b"\r\n"].concat());
    for _ in 0..200 {
        calm.then(|w| w.deliver(usize::MAX));
    }
    calm.then(|w| w.client_takes(usize::MAX));
    let got = String::from_utf8_lossy(&calm.0.client.received);
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
}

// proves R-ADM-9
#[test]
fn a_shard_that_is_late_sends_new_work_away() {
    for (delay_ms, ends) in [(499, Outcome::Served), (500, Outcome::Rejected)] {
        // The target of these fleets is 2 s.
        let mut calm = Calm::new(ONE_LEG);
        calm.0.shard.loop_delay = Duration::from_millis(delay_ms);
        calm.asks(&[HEAD, BODY].concat());
        calm.settles();
        assert_eq!(calm.ended(ends), 1, "{delay_ms}");
        let late = calm.0.client.received.starts_with(b"HTTP/1.1 429");
        assert_eq!(late, ends == Outcome::Rejected);
    }
}

// proves R-CTL-2, R-ADM-9
#[test]
fn a_held_router_ends_waits_even_of_those_it_has_just_let_in() {
    for granted in [false, true] {
        let mut calm = Calm::new(0);
        calm.then(|w| w.hold_permits(1));
        calm.asks(
            &[
                b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 16\r\n\r\n",
                &b"{\"prompt\":[1,2]}"[..],
            ]
            .concat(),
        );
        assert_eq!(calm.0.shard.lines().len(), 1);
        calm.0.stand(Standing::Standby);
        if granted {
            calm.then(|w| w.hold_permits(0));
        } else {
            calm.then(World::look_around);
        }
        assert!(calm.0.shard.lines().is_empty());
        calm.settles();
        assert_eq!(calm.ended(Outcome::Rejected), 1, "granted {granted}");
        assert!(calm.0.client.received.starts_with(b"HTTP/1.1 503"));
        assert!(calm.0.legs.iter().all(Option::is_none));
    }
}

/// Saturation is told before anything that depends on the router's state.
// proves R-ADM-9
#[test]
fn a_late_shard_says_so_before_it_says_that_it_is_held() {
    let mut calm = Calm::new(ONE_LEG);
    calm.0.shard.loop_delay = Duration::from_secs(1);
    calm.0.stand(Standing::Standby);
    calm.asks(&[HEAD, BODY].concat());
    calm.settles();
    assert!(calm.0.client.received.starts_with(b"HTTP/1.1 429"));
}
