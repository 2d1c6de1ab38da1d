//! How one engine is asked: the legs that a router would send it, by its dialect and role, and what comes back.
//!
//! | way | prefill is | a stream is |
//! |---|---|---|
//! | `Alone` | a stream of one token, to the token | a plain request |
//! | `Leg` | vLLM's prefill leg, to the end of its answer; its KV is then fetched by a decode engine, which frees it | a plain request |
//! | `Pair` | a producer's prefill leg and the handoff's first token | the same, and the tokens after it |
//! | `Room` | SGLang's prefill leg, to the end of its answer; a decode engine's leg meets it | both legs |
//!
//! Invariant: a stream's events are counted by the rules on token ids, and one that breaks them is an error.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value;

use super::client::{Client, Coming, EVENT_BYTES_MAX, Link, Trouble, told};
use super::prompt::Prompt;
use crate::base::time::{Clock, Instant};
use crate::base::units::EngineId;
use crate::config::{Dialect, EngineView, Snapshot};
use crate::runtime::clock::MonotonicClock;
use crate::wire::dialect::{openai, sglang, vllm};
use crate::wire::event::{EventStream, Facts, Ids, Item};
use crate::wire::openai::{Request, Route, Rules, check, engine_message};

/// How an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Alone,
    Leg { fetched_by: Option<EngineId> },
    Pair { producer: EngineId },
    Room { partner: EngineId },
}

/// One engine and who helps to measure it.
pub struct Rig {
    pub client: Client,
    pub snapshot: Arc<Snapshot>,
    pub engine: EngineId,
    pub way: Way,
    pub clock: MonotonicClock,
}

/// A prompt that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Read {
    pub tokens: u64,
    pub seconds: f64,
    /// Of them, those that a cache had.
    pub cached_tokens: u64,
    /// KV that nobody fetched stays on the engine for a while.
    pub parked: bool,
}

impl Way {
    /// Points of different ways do not mix.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Alone => "alone",
            Way::Leg { .. } => "leg",
            Way::Pair { .. } => "pair",
            Way::Room { .. } => "room",
        }
    }
}

/// Tokens of one stream, as they come.
pub struct Tokens {
    coming: Coming,
    events: EventStream,
    seen: u64,
    usage: Option<Usage>,
    /// Keeps the other leg alive.
    _beside: Option<Beside>,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    prompt_tokens: u64,
    cached_tokens: u64,
}

/// The other leg of a room, read to its end beside ours.
struct Beside(tokio::task::JoinHandle<()>);

const COMPLETIONS: &str = "/v1/completions";

impl Rig {
    pub fn view(&self, id: EngineId) -> &EngineView {
        &self.snapshot.engines[id.index()]
    }

    fn dialect(&self) -> Dialect {
        self.snapshot.fleet.engine.dialect
    }

    fn own(&self) -> &EngineView {
        self.view(self.engine)
    }

    /// Reads one prompt and times it. `prompt` may generate one token.
    pub async fn read(self: &Arc<Self>, prompt: &Prompt, room: u64) -> Result<Read, Trouble> {
        match self.way {
            Way::Leg { fetched_by } => self.read_leg(prompt, fetched_by).await,
            Way::Room { partner } => self.read_room(prompt, partner, room).await,
            Way::Alone | Way::Pair { .. } => self.read_stream(prompt, room).await,
        }
    }

    /// Starts a stream that generates what `prompt` allows. `room` is different each time.
    pub async fn start(self: &Arc<Self>, prompt: &Prompt, room: u64) -> Result<Tokens, Trouble> {
        let link = self.client.dial(self.own()).await?;
        self.start_on(link, prompt, room).await
    }

    async fn start_on(
        self: &Arc<Self>,
        link: Link,
        prompt: &Prompt,
        room: u64,
    ) -> Result<Tokens, Trouble> {
        let (request, body) = (self.check(prompt)?, &prompt.body);
        let model = &self.snapshot.fleet.model;
        let mut out = Vec::with_capacity(body.len() + 256);
        let mut beside = None;
        match (self.dialect(), self.way) {
            (Dialect::Vllm, Way::Pair { producer }) => {
                let answer = self.prefill_leg(producer, prompt).await?;
                let handoff = handoff(&answer)?.ok_or(Trouble::Answer("a handoff"))?;
                vllm::decode_body(&mut out, body, &request, model, Some(handoff));
            }
            (Dialect::Vllm, _) => vllm::decode_body(&mut out, body, &request, model, None),
            (Dialect::Openai, _) => openai::decode_body(&mut out, body, &request, model),
            (Dialect::Sglang, Way::Room { partner }) => {
                let part = self.part(partner, room, "decode")?;
                let route = Route::Completions;
                sglang::decode_body(&mut out, body, &request, route, model, &part.of());
                beside = Some(self.prefill_beside(partner, prompt, room)?);
            }
            (Dialect::Sglang, _) => {
                let rid = format!("narwhal-profile-{room}");
                let part = sglang::Part {
                    meeting: None,
                    rid: &rid,
                };
                let route = Route::Completions;
                sglang::decode_body(&mut out, body, &request, route, model, &part);
            }
        }
        let coming = self.client.post(link, self.own(), COMPLETIONS, out).await?;
        Ok(self.tokens(coming, beside))
    }

    fn tokens(&self, coming: Coming, beside: Option<Beside>) -> Tokens {
        let ids = match self.dialect() {
            Dialect::Openai => Ids::Absent,
            Dialect::Vllm | Dialect::Sglang => Ids::Expected,
        };
        Tokens {
            coming,
            events: EventStream::new(ids, EVENT_BYTES_MAX),
            seen: 0,
            usage: None,
            _beside: beside,
        }
    }

    /// To the first token of a stream of one.
    async fn read_stream(self: &Arc<Self>, prompt: &Prompt, room: u64) -> Result<Read, Trouble> {
        let link = self.client.dial(self.own()).await?;
        let from = self.clock.now();
        let mut tokens = self.start_on(link, prompt, room).await?;
        let mut first = None;
        loop {
            let step = tokens.next().await?;
            if step.tokens > 0 && first.is_none() {
                first = Some(self.clock.now());
            }
            if step.done {
                break;
            }
        }
        let first = first.ok_or(Trouble::Ended("a token"))?;
        self.read_in(prompt, tokens.usage, from, first)
    }

    async fn read_leg(&self, prompt: &Prompt, by: Option<EngineId>) -> Result<Read, Trouble> {
        let link = self.client.dial(self.own()).await?;
        let body = self.prefill_body(prompt)?;
        let from = self.clock.now();
        let coming = self
            .client
            .post(link, self.own(), COMPLETIONS, body)
            .await?;
        let answer = coming.collect().await?;
        let to = self.clock.now();
        let handoff = handoff(&answer)?;
        let mut read = self.read_in(prompt, usage_of(&answer), from, to)?;
        let Some(handoff) = handoff else {
            return Ok(read);
        };
        match by {
            None => read.parked = true,
            Some(by) => self.fetch(by, prompt, handoff).await?,
        }
        Ok(read)
    }

    /// Has another engine take the KV over, so that the producer is rid of it.
    async fn fetch(&self, by: EngineId, prompt: &Prompt, handoff: &[u8]) -> Result<(), Trouble> {
        let (request, model) = (self.check(prompt)?, &self.snapshot.fleet.model);
        let mut out = Vec::new();
        vllm::decode_body(&mut out, &prompt.body, &request, model, Some(handoff));
        let engine = self.view(by);
        let link = self.client.dial(engine).await?;
        let coming = self.client.post(link, engine, COMPLETIONS, out).await?;
        let mut tokens = self.tokens(coming, None);
        while !tokens.next().await?.done {}
        Ok(())
    }

    /// A prefill engine's leg, its partner's beside it. The decode leg goes out first, as in serving.
    async fn read_room(
        &self,
        prompt: &Prompt,
        partner: EngineId,
        room: u64,
    ) -> Result<Read, Trouble> {
        let (request, model) = (self.check(prompt)?, &self.snapshot.fleet.model);
        let part = self.part(self.engine, room, "decode")?;
        let mut out = Vec::new();
        let route = Route::Completions;
        sglang::decode_body(&mut out, &prompt.body, &request, route, model, &part.of());
        let other = self.view(partner);
        let (link, far) = (
            self.client.dial(self.own()).await?,
            self.client.dial(other).await?,
        );
        let body = self.prefill_room_body(self.engine, prompt, room)?;
        let decode = async {
            let coming = self.client.post(far, other, COMPLETIONS, out).await?;
            let mut tokens = self.tokens(coming, None);
            while !tokens.next().await?.done {}
            Ok::<(), Trouble>(())
        };
        let from = self.clock.now();
        let prefill = async {
            let coming = self
                .client
                .post(link, self.own(), COMPLETIONS, body)
                .await?;
            let answer = coming.collect().await?;
            Ok((answer, self.clock.now()))
        };
        let ((), (answer, to)) = tokio::try_join!(decode, prefill)?;
        self.read_in(prompt, usage_of(&answer), from, to)
    }

    fn read_in(
        &self,
        prompt: &Prompt,
        usage: Option<Usage>,
        from: Instant,
        to: Instant,
    ) -> Result<Read, Trouble> {
        let counted = usage.map(|usage| usage.prompt_tokens);
        let tokens = match counted {
            Some(counted) => counted,
            None if prompt.is_exact => prompt.tokens,
            None => return Err(Trouble::Answer("`usage` with the prompt's length")),
        };
        Ok(Read {
            tokens,
            seconds: to.since(from).as_secs_f64(),
            cached_tokens: usage.map_or(0, |usage| usage.cached_tokens),
            parked: false,
        })
    }

    /// A vLLM engine's prefill leg; its whole answer.
    async fn prefill_leg(&self, engine: EngineId, prompt: &Prompt) -> Result<Vec<u8>, Trouble> {
        let engine = self.view(engine);
        let link = self.client.dial(engine).await?;
        let body = self.prefill_body(prompt)?;
        let coming = self.client.post(link, engine, COMPLETIONS, body).await?;
        coming.collect().await
    }

    fn prefill_body(&self, prompt: &Prompt) -> Result<Vec<u8>, Trouble> {
        let request = self.check(prompt)?;
        let mut out = Vec::with_capacity(prompt.body.len() + 256);
        vllm::prefill_body(&mut out, &prompt.body, &request, &self.snapshot.fleet.model);
        Ok(out)
    }

    /// An SGLang prefill engine's leg, in a task of its own: its answer comes when both have met.
    fn prefill_beside(
        self: &Arc<Self>,
        engine: EngineId,
        prompt: &Prompt,
        room: u64,
    ) -> Result<Beside, Trouble> {
        let body = self.prefill_room_body(engine, prompt, room)?;
        let rig = self.clone();
        Ok(Beside(tokio::spawn(async move {
            let engine = rig.view(engine);
            // Should it fail, the decode leg fails and says why.
            if let Ok(link) = rig.client.dial(engine).await
                && let Ok(coming) = rig.client.post(link, engine, COMPLETIONS, body).await
            {
                let _ = coming.collect().await;
            }
        })))
    }

    fn prefill_room_body(
        &self,
        engine: EngineId,
        prompt: &Prompt,
        room: u64,
    ) -> Result<Vec<u8>, Trouble> {
        let (request, part) = (self.check(prompt)?, self.part(engine, room, "prefill")?);
        let mut out = Vec::with_capacity(prompt.body.len() + 256);
        let model = &self.snapshot.fleet.model;
        sglang::prefill_body(&mut out, &prompt.body, &request, model, &part.of());
        Ok(out)
    }

    fn part(&self, prefill: EngineId, room: u64, leg: &str) -> Result<Part<'_>, Trouble> {
        let meets = self.snapshot.bootstrap(prefill);
        let (host, port) = meets.ok_or(Trouble::Answer("a bootstrap server"))?;
        let rid = format!("narwhal-profile-{room}-{leg}");
        Ok(Part {
            host,
            port,
            room,
            rid,
        })
    }

    fn check(&self, prompt: &Prompt) -> Result<Request, Trouble> {
        let rules = Rules {
            dialect: self.dialect(),
            model: &self.snapshot.fleet.model,
            aliases: &[],
        };
        // Our own body; a model's name is all that is not ours in it.
        let request = check(Route::Completions, &prompt.body, &rules);
        request.map_err(|_| Trouble::Answer("our own request"))
    }
}

/// A leg's part in a room, owned.
struct Part<'a> {
    host: &'a str,
    port: u16,
    room: u64,
    rid: String,
}

impl Part<'_> {
    fn of(&self) -> sglang::Part<'_> {
        sglang::Part {
            meeting: Some(sglang::Meeting {
                host: self.host,
                port: self.port,
                room: self.room,
            }),
            rid: &self.rid,
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What one read brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    pub tokens: u64,
    pub done: bool,
}

impl Tokens {
    /// Waits for the next read. After `done` nothing comes.
    pub async fn next(&mut self) -> Result<Step, Trouble> {
        let piece = self.coming.piece().await?;
        let (mut step, mut trouble) = (Step::default(), None);
        let (seen, usage) = (&mut self.seen, &mut self.usage);
        let sink = |item: Item<'_>| {
            match item {
                Item::Object { value, facts, .. } => {
                    *seen += 1;
                    trouble = trouble_of(value, facts, *seen);
                    step.tokens += facts.tokens;
                    if let Some(found) = usage_of(value) {
                        *usage = Some(found);
                    }
                }
                Item::Malformed { .. } => trouble = Some(Trouble::Malformed { event: *seen + 1 }),
                Item::Done => step.done = true,
                Item::Line(_) | Item::Blank => {}
            }
            match trouble {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        };
        let fed = match &piece {
            Some(piece) => self.events.feed(piece, sink),
            None => self.events.eof(sink),
        };
        let _ = fed.map_err(|_| Trouble::TooLarge(EVENT_BYTES_MAX))?;
        match trouble {
            Some(trouble) => Err(trouble),
            None if piece.is_none() && !step.done => Err(Trouble::Ended("[DONE]")),
            None => Ok(step),
        }
    }
}

fn trouble_of(value: &[u8], facts: &Facts, event: u64) -> Option<Trouble> {
    if let Some(error) = &facts.error {
        return Some(Trouble::Stream {
            status: error.status,
            message: told(engine_message(value)),
        });
    }
    if facts.abort {
        return Some(Trouble::Abort);
    }
    (!facts.ids_ok).then_some(Trouble::BadIds { event })
}

/// The handoff of a prefill answer; `None` when the engine makes none.
fn handoff(answer: &[u8]) -> Result<Option<&[u8]>, Trouble> {
    const WHAT: &str = "the answer of a prefill leg";
    let found = vllm::prefill_answer(answer).map_err(|_| Trouble::Answer(WHAT))?;
    if let Some(error) = found.error {
        return Err(Trouble::Stream {
            status: error.status,
            message: told(engine_message(answer)),
        });
    }
    if found.aborted {
        return Err(Trouble::Abort);
    }
    match found.handoff {
        Ok(span) => Ok(Some(&answer[span])),
        Err(vllm::HandoffFault::Missing) => Ok(None),
        Err(_) => Err(Trouble::Answer("a handoff")),
    }
}

/// `usage` of an answer or an event that has one.
fn usage_of(value: &[u8]) -> Option<Usage> {
    // Nearly every event has none, or null.
    let named = value.windows(7).any(|w| w == b"\"usage\"");
    let value: Value = named
        .then(|| serde_json::from_slice(value).ok())
        .flatten()?;
    let usage = &value["usage"];
    Some(Usage {
        prompt_tokens: usage["prompt_tokens"].as_u64().filter(|n| *n > 0)?,
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0),
    })
}
