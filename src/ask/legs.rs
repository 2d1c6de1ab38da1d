//! How one engine is asked: the legs that a router would send it, by its dialect and role, and what comes back.
//!
//! | way | prefill is | a stream is |
//! |---|---|---|
//! | `Alone` | a stream of one token, to the token | a plain request |
//! | `Leg` | vLLM's prefill leg, to the end of its answer; its KV is then fetched by a decode engine, which frees it | a plain request |
//! | `Pair` | a producer's prefill leg and the handoff's first token | the same, and the tokens after it |
//! | `Room` | SGLang's prefill leg, to the end of its answer; a decode engine's leg meets it | both legs |
//!
//! Invariant: time runs from the moment a dialed connection is written to.

use std::sync::Arc;

use super::client::{Client, Coming, Link, Trouble};
use super::prompt::Prompt;
use super::tokens::{Beside, Tokens, Usage, handoff, usage_of};
use crate::base::time::{Clock, Instant};
use crate::base::units::EngineId;
use crate::config::{Dialect, EngineView, Role, Snapshot};
use crate::runtime::clock::MonotonicClock;
use crate::wire::dialect::{openai, sglang, vllm};
use crate::wire::openai::{Request, Route, Rules, check};

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
    /// There was KV to fetch.
    pub handed_over: bool,
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

    pub const fn measures(self) -> &'static str {
        match self {
            Way::Alone => "plain requests",
            Way::Leg { .. } => "prefill legs, and plain requests for decode",
            Way::Pair { .. } => "handoffs from a prefill engine",
            Way::Room { .. } => "legs that meet those of its partner",
        }
    }
}

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
            Way::Room { partner } if self.own().role == Role::Prefill => {
                self.read_room(prompt, partner, room).await
            }
            _ => self.read_stream(prompt, room).await,
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
                let answer = self.prefill_leg(producer, prompt).await;
                let answer = answer.map_err(|why| why.of_partner(self.view(producer)))?;
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
        Tokens::new(coming, self.dialect(), beside)
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
        self.read_in(prompt, tokens.usage(), from, first)
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
        if let (Some(handoff), Some(by)) = (handoff, by) {
            let fetched = self.fetch(by, prompt, handoff).await;
            fetched.map_err(|why| why.of_partner(self.view(by)))?;
        }
        let mut read = self.read_in(prompt, usage_of(&answer), from, to)?;
        read.handed_over = handoff.is_some();
        read.parked = handoff.is_some() && by.is_none();
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
            let decoded = async {
                let coming = self.client.post(far, other, COMPLETIONS, out).await?;
                let mut tokens = self.tokens(coming, None);
                while !tokens.next().await?.done {}
                Ok(())
            };
            decoded.await.map_err(|why: Trouble| why.of_partner(other))
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
            None => return Err(Trouble::NoUsage),
        };
        Ok(Read {
            tokens,
            seconds: to.since(from).as_secs_f64(),
            cached_tokens: usage.map_or(0, |usage| usage.cached_tokens),
            parked: false,
            handed_over: false,
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
