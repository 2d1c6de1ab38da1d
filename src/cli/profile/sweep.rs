//! The two sweeps of one engine: visits the points that `fleet::measure` plans, takes those that the journal has, and tells each as it
//! comes. Owns the engine's prompts and its place in the journal.
//!
//! Invariant: one point at a time, and none begins before the streams of the last are off the engine, as far as it tells.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::facts;
use super::journal::{Journal, Owner, Point};
use super::together::{self, Missed};
use crate::ask::client::Trouble;
use crate::ask::legs::{Read, Rig};
use crate::ask::prompt::{LEARN_WORDS, Prompt, Prompts};
use crate::base::prng::Prng;
use crate::base::time::{Clock, Instant};
use crate::fleet::measure::fit::{DecodePoint, PrefillPoint, median};
use crate::fleet::measure::sweep::{self, KV_SHARE, Room, Streams, Wish};
use crate::fleet::measure::window::Steady;

/// What is asked for, beside the points.
#[derive(Clone, Debug)]
pub struct Asked {
    pub wish: Wish,
    pub repeats: u32,
    pub decode_repeats: u32,
    pub point_timeout: Duration,
    /// How long a producer keeps KV that nobody fetches.
    pub lease: Duration,
}

/// One engine's measurement.
pub struct Sweep<'a> {
    pub rig: Arc<Rig>,
    pub owner: Owner,
    pub room: Room,
    pub asked: &'a Asked,
    pub prompts: Prompts,
    pub prng: Prng,
    pub journal: &'a mut Journal,
    /// KV on the engine that nobody fetches, and until when.
    pub parked: VecDeque<(Instant, u64)>,
}

/// Why a measurement cannot go on.
#[derive(Debug)]
pub enum Stopped {
    Engine(Trouble),
    Journal(std::io::Error),
}

impl Sweep<'_> {
    /// Reads a few prompts that do not count: connections, caches of code, and how long words are.
    pub async fn warm_up(&mut self) -> Result<(), Trouble> {
        if self.prompts.is_exact() {
            for _ in 0..2 {
                let prompt = self.prompts.make(WARM_TOKENS.min(self.room.len_max / 2), 1);
                self.read(&prompt).await?;
            }
            return Ok(());
        }
        let mut counted = [0; 2];
        for (words, counted) in LEARN_WORDS.iter().zip(&mut counted) {
            let prompt = self.prompts.of_words(*words);
            *counted = self.read(&prompt).await?.tokens;
        }
        self.prompts.learn(counted);
        Ok(())
    }

    /// Prompt lengths against the time to read them; of each length the median.
    pub async fn prefill(&mut self) -> Result<Vec<PrefillPoint>, Stopped> {
        let lengths = sweep::prompts(&self.asked.wish, &self.room);
        let mut points = Vec::new();
        for (at, asked_tokens) in lengths.iter().copied().enumerate() {
            let (mut tokens, mut seconds) = (Vec::new(), Vec::new());
            let mut known = 0;
            for repeat in 0..self.asked.repeats {
                let of_journal = self.known_prefill(asked_tokens, repeat);
                known += u32::from(of_journal.is_some());
                let (n, s) = match of_journal {
                    Some(found) => found,
                    None => self.measure_prefill(asked_tokens, repeat).await?,
                };
                tokens.push(n as f64);
                seconds.push(s);
            }
            let point = PrefillPoint {
                tokens: median(&tokens),
                seconds: median(&seconds),
            };
            self.say(format_args!(
                "prefill {}/{}: {} tokens in {:.2} ms{}",
                at + 1,
                lengths.len(),
                point.tokens,
                point.seconds * 1e3,
                from_journal(known, self.asked.repeats),
            ));
            points.push(point);
        }
        Ok(points)
    }

    fn known_prefill(&self, asked: u64, of: u32) -> Option<(u64, f64)> {
        self.journal.of(&self.owner).find_map(|point| match point {
            Point::Prefill {
                asked_tokens,
                repeat,
                tokens,
                seconds,
            } if (*asked_tokens, *repeat) == (asked, of) => Some((*tokens, *seconds)),
            _ => None,
        })
    }

    async fn measure_prefill(&mut self, asked: u64, repeat: u32) -> Result<(u64, f64), Stopped> {
        let prompt = self.prompts.make(asked, 1);
        let read = self.read(&prompt).await.map_err(Stopped::Engine)?;
        if read.cached_tokens > 0 {
            self.say(format_args!(
                "warning: {} of {} tokens were in its prefix cache, this point is too fast",
                read.cached_tokens, read.tokens
            ));
        }
        let point = Point::Prefill {
            asked_tokens: asked,
            repeat,
            tokens: read.tokens,
            seconds: read.seconds,
        };
        self.note(point)?;
        Ok((read.tokens, read.seconds))
    }

    /// One read, once there is room for its KV.
    async fn read(&mut self, prompt: &Prompt) -> Result<Read, Trouble> {
        self.wait_for_room(prompt.tokens).await;
        let room = self.prng.u64() >> 1;
        let bound = self.asked.point_timeout;
        let read = timeout(bound, self.rig.read(prompt, room)).await;
        let read = read.unwrap_or(Err(Trouble::Late(bound)))?;
        if read.parked {
            let until = self.rig.clock.now() + self.asked.lease;
            self.parked.push_back((until, read.tokens));
        }
        Ok(read)
    }

    /// KV that nobody fetches takes room until its lease ends; an engine that is full of it makes prompts wait.
    async fn wait_for_room(&mut self, tokens: u64) {
        let most = self.room.kv_tokens.saturating_mul(KV_SHARE) / 200;
        loop {
            let now = self.rig.clock.now();
            while self.parked.front().is_some_and(|(until, _)| *until <= now) {
                self.parked.pop_front();
            }
            let held: u64 = self.parked.iter().map(|(_, tokens)| tokens).sum();
            let Some((until, _)) = self.parked.front().filter(|_| held + tokens > most) else {
                return;
            };
            let left = until.since(now);
            self.say(format_args!(
                "waiting {left:.0?}: {held} tokens of KV that no decode engine fetches"
            ));
            sleep(left).await;
        }
    }

    /// Numbers of streams and context lengths against the interval between tokens.
    pub async fn decode(&mut self) -> Result<Vec<DecodePoint>, Stopped> {
        let plan = sweep::streams(&self.asked.wish, &self.room);
        let mut points = Vec::new();
        let mut missed: Vec<Streams> = Vec::new();
        for (at, streams) in plan.iter().enumerate() {
            let n = (at + 1, plan.len());
            let is_beyond = |m: &Streams| {
                streams.requests >= m.requests && streams.prompt_tokens >= m.prompt_tokens
            };
            if missed.iter().any(is_beyond) {
                self.say_decode(n, streams, "left out, like the smaller one before");
                continue;
            }
            match self.decode_point(streams, n).await? {
                Some(point) => points.push(point),
                None => missed.push(*streams),
            }
        }
        Ok(points)
    }

    async fn decode_point(
        &mut self,
        streams: &Streams,
        n: (usize, usize),
    ) -> Result<Option<DecodePoint>, Stopped> {
        let (mut kv, mut intervals) = (Vec::new(), Vec::new());
        let mut known = 0;
        for repeat in 0..self.asked.decode_repeats {
            let of_journal = self.known_decode(streams, repeat);
            known += u32::from(of_journal.is_some());
            let (kv_tokens, interval_s) = match of_journal {
                Some(found) => found,
                None => match self.measure_decode(streams).await {
                    Ok(steady) => {
                        self.note(Point::Decode {
                            requests: streams.requests,
                            prompt_tokens: streams.prompt_tokens,
                            repeat,
                            kv_tokens: steady.kv_tokens,
                            interval_s: steady.interval_s,
                        })?;
                        (steady.kv_tokens, steady.interval_s)
                    }
                    Err(Missed::Trouble(trouble)) => return Err(Stopped::Engine(trouble)),
                    Err(why) => {
                        self.say_decode(n, streams, format_args!("left out: {why}"));
                        return Ok(None);
                    }
                },
            };
            kv.push(kv_tokens);
            intervals.push(interval_s);
        }
        let point = DecodePoint {
            requests: streams.requests as f64,
            kv_tokens: median(&kv),
            interval_s: median(&intervals),
        };
        let told = format_args!(
            "{:.3} ms with {:.0} KV tokens{}",
            point.interval_s * 1e3,
            point.kv_tokens,
            from_journal(known, self.asked.decode_repeats)
        )
        .to_string();
        self.say_decode(n, streams, told);
        Ok(Some(point))
    }

    fn known_decode(&self, streams: &Streams, of: u32) -> Option<(f64, f64)> {
        let wanted = (streams.requests, streams.prompt_tokens, of);
        self.journal.of(&self.owner).find_map(|point| match point {
            Point::Decode {
                requests,
                prompt_tokens,
                repeat,
                kv_tokens,
                interval_s,
            } if (*requests, *prompt_tokens, *repeat) == wanted => Some((*kv_tokens, *interval_s)),
            _ => None,
        })
    }

    async fn measure_decode(&mut self, streams: &Streams) -> Result<Steady, Missed> {
        let prompts = (0..streams.requests)
            .map(|_| self.prompts.make(streams.prompt_tokens, streams.tokens_max))
            .collect();
        let asked = self.asked;
        let measured = together::run(
            &self.rig,
            prompts,
            asked.wish.window_tokens,
            asked.point_timeout,
            &mut self.prng,
        );
        let measured = measured.await;
        self.settle().await;
        measured
    }

    /// Gives the engine a moment to notice that its streams are gone.
    async fn settle(&self) {
        let engine = self.rig.view(self.rig.engine);
        for _ in 0..SETTLE_LOOKS {
            sleep(SETTLE).await;
            let page = self.rig.client.page(engine, "/metrics").await;
            let busy = page
                .ok()
                .and_then(|(_, page)| facts::busy(&String::from_utf8_lossy(&page)));
            if busy.is_none_or(|busy| busy == 0) {
                return;
            }
        }
    }

    fn note(&mut self, point: Point) -> Result<(), Stopped> {
        self.journal
            .add(&self.owner, point)
            .map_err(Stopped::Journal)
    }

    fn say_decode(&self, (at, of): (usize, usize), streams: &Streams, what: impl fmt::Display) {
        let Streams {
            requests,
            prompt_tokens,
            ..
        } = streams;
        self.say(format_args!(
            "decode {at}/{of}: {requests} requests of {prompt_tokens} tokens: {what}"
        ));
    }

    fn say(&self, what: impl fmt::Display) {
        eprintln!("profile {}: {what}", self.owner.iid);
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Engine(trouble) => trouble.fmt(f),
            Stopped::Journal(why) => write!(f, "the journal of points: {why}"),
        }
    }
}

fn from_journal(known: u32, of: u32) -> &'static str {
    match known {
        0 => "",
        n if n == of => " (from the journal)",
        _ => " (partly from the journal)",
    }
}

/// Of a prompt that does not count.
const WARM_TOKENS: u64 = 256;

/// vLLM 0.32.0 took 22 ms to notice.
const SETTLE: Duration = Duration::from_millis(50);
const SETTLE_LOOKS: u32 = 10;
