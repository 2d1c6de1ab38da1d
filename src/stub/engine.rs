//! One simulated engine, and the world that several share. Owns its load and its chance; time comes in with each call.
//!
//! [`Engine::request`] checks a request as vLLM 0.32.0 does and turns it into a [`Reply`]: an answer with the time it is ready, or a
//! stream to poll. Dropping a reply is the client leaving: the request is off the engine at once.
//!
//! Where it is simpler than a real engine: one prompt and one choice a request; no reasoning, tools, log probabilities, echo or stop
//! strings (asked for, they stay `null` or unused); what is kept for other engines takes no room from those that run.
//!
//! Invariant: a dead engine answers no completion and calls itself unhealthy until [`Engine::restart`].

mod check;
mod dialect;
mod meeting;
mod page;
mod reply;
mod setup;
mod sglang;
mod world;

use std::rc::Rc;

use self::reply::{Pending, at_once};
pub use self::reply::{Reply, Whole};
pub use self::setup::Setup;
pub use self::world::World;
use crate::base::prng::Prng;
use crate::base::time::Instant;
use crate::base::units::{Dialect, Role};
use crate::stub::ask::{self, Ask, Route, Transfer};
use crate::stub::cache::PrefixCache;
use crate::stub::faults::{Injected, Judge, Leg};
use crate::stub::handoff::{EngineName, Handoffs, Taken, engine_name};
use crate::stub::load::{Begin, Load, Resident};
use crate::stub::refusal::Refusal;
use crate::stub::rooms::Seat;
use crate::stub::stream::{Plan, Stream};
use crate::stub::vllm;

/// One request as it came, its head read and its body whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Incoming<'a> {
    pub method: &'a [u8],
    /// The request target; a query is ignored.
    pub path: &'a [u8],
    /// `x-request-id`.
    pub request_id: Option<&'a [u8]>,
    pub content_type: Option<&'a [u8]>,
    pub body: &'a [u8],
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    setup: Setup,
    prng: Prng,
    name: EngineName,
    fingerprint: String,
    load: Rc<Load>,
    cache: PrefixCache,
    judge: Judge,
    started: Instant,
    next_block: u32,
    /// It takes nothing new.
    draining: bool,
    /// From when to when its port is closed.
    closed: (Instant, Instant),
}

impl Engine {
    pub fn new(setup: Setup, now: Instant) -> Self {
        assert!(setup.block_tokens >= 1, "a block holds a token");
        assert!(setup.len_max >= 2, "a prompt and an answer fit");
        let mut prng = Prng::new(setup.seed);
        let name = engine_name(&mut prng);
        let fingerprint = format!("vllm-{}-{:08x}", vllm::VERSION, prng.u64() as u32);
        Engine {
            load: Rc::new(Load::new(setup.bounds)),
            cache: PrefixCache::new(setup.bounds.cached_tokens_max, setup.block_tokens),
            judge: Judge::new(&setup.faults, setup.seed),
            setup,
            prng,
            name,
            fingerprint,
            started: now,
            next_block: 0,
            draining: false,
            closed: (Instant::FAR, Instant::FAR),
        }
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Its name in handoffs.
    pub fn name(&self) -> &EngineName {
        &self.name
    }

    /// Answers one request.
    pub fn request(
        &mut self,
        now: Instant,
        incoming: &Incoming<'_>,
        handoffs: &mut Handoffs,
    ) -> Reply {
        let path = incoming.path.split(|b| *b == b'?').next().unwrap_or(b"");
        let route = match path {
            b"/v1/completions" => Some(Route::Completion),
            b"/v1/chat/completions" => Some(Route::Chat),
            _ if self.is_tokenize(path) => Some(Route::Tokenize),
            _ => None,
        };
        let mut injected = Injected::default();
        let Some(route) = route else {
            injected = self.judged(now, page::leg(path), handoffs);
            let answer = injected
                .instead(|refusal| self.refused(refusal))
                .unwrap_or_else(|| self.page(now, path, incoming.method, handoffs));
            return at_once(now, answer).with(injected);
        };
        if incoming.method != b"POST" {
            return at_once(now, self.no_method("POST"));
        }
        if std::str::from_utf8(incoming.body).is_err() {
            return at_once(now, self.no_utf8());
        }
        self.asked(now, route, incoming, handoffs, &mut injected)
            .unwrap_or_else(|refusal| at_once(now, self.refused(&refusal)))
            .with(injected)
    }

    fn asked(
        &mut self,
        now: Instant,
        route: Route,
        incoming: &Incoming<'_>,
        handoffs: &mut Handoffs,
        injected: &mut Injected,
    ) -> Result<Reply, Refusal> {
        let dialect = self.setup.dialect;
        if dialect != Dialect::Openai && !dialect::is_json(incoming.content_type) {
            return Err(Refusal::media_type());
        }
        let mut ask = ask::read_in(dialect, route, incoming.body)?;
        *injected = self.judged(now, self.leg(route, &ask), handoffs);
        if let Some(answer) = injected.instead(|refusal| self.refused(refusal)) {
            return Ok(at_once(now, answer));
        }
        let checked = self.check(route, &ask);
        if checked.is_err()
            && let Transfer::Fetch(claim) = &ask.transfer
        {
            handoffs.release(claim);
        }
        let (plan, ids) = checked?;
        if route == Route::Tokenize {
            let strs = ask
                .return_token_strs
                .then(|| ask.prompt.as_ref().map(ask::Prompt::strs))
                .flatten();
            return Ok(at_once(now, self.tokenized(&ids, strs.as_deref())));
        }
        if self.load.is_dead() {
            return Err(Refusal::core_died());
        }
        if self.draining {
            return Err(Refusal::shutdown());
        }
        let job = Job {
            route,
            id: self.answer_id(route, incoming, &ask),
            model: self.answer_model(&mut ask),
            reasoning: sglang::reasoning(route, &ask, &plan),
            plan,
            prompt_ids: ids,
            stream: ask.stream,
            extras: vllm::Extras {
                usage: ask.include_usage,
                running_usage: ask.include_usage && ask.continuous_usage,
            },
        };
        match dialect {
            Dialect::Vllm => Ok(self.generate(now, job, &ask.transfer, handoffs)),
            Dialect::Sglang => self.meet(now, job, &ask, handoffs),
            Dialect::Openai => Ok(self.start(now, job, false, None)),
        }
    }

    /// Starts the request, which is all right.
    fn generate(
        &mut self,
        now: Instant,
        job: Job,
        transfer: &Transfer,
        handoffs: &mut Handoffs,
    ) -> Reply {
        let connector = self.setup.connector;
        let Transfer::Fetch(claim) = transfer else {
            let keep = matches!(transfer, Transfer::Make) && connector;
            return self.start(now, job, false, keep.then_some(handoffs));
        };
        if !connector {
            return self.start(now, job, false, None);
        }
        match handoffs.take(now, claim, self.setup.blocks) {
            Taken::NoEngine => self.fail(now, &job, Refusal::internal()),
            Taken::NoBlock => {
                self.kill(handoffs);
                self.fail(now, &job, Refusal::core_died())
            }
            Taken::Right | Taken::Again | Taken::Late | Taken::Astray => {
                let mut job = job;
                job.plan.cached_tokens = claim.cached_tokens.min(job.plan.prompt_tokens);
                self.start(now, job, true, None)
            }
        }
    }

    fn fail(&self, now: Instant, job: &Job, refusal: Refusal) -> Reply {
        if !job.stream {
            return at_once(now, self.refused(&refusal));
        }
        let shape = self.shape(now, job);
        Reply::Stream(Box::new(Stream::failed(shape, job.plan, now, refusal)))
    }

    /// `fetched`: the prompt's KV comes from elsewhere. `keep`: it is kept for elsewhere.
    fn start(
        &mut self,
        now: Instant,
        mut job: Job,
        fetched: bool,
        keep: Option<&mut Handoffs>,
    ) -> Reply {
        let begin = if fetched {
            Begin::Fetch
        } else {
            Begin::Read(self.unknown(&mut job))
        };
        let resident = Resident::new(self.load.clone(), job.plan.prompt_tokens);
        self.begin(now, job, (resident, begin), keep, None)
    }

    /// How many tokens of the prompt are to be read; the others are in the cache.
    fn unknown(&mut self, job: &mut Job) -> u64 {
        job.plan.cached_tokens = self.cache.prompt(&job.prompt_ids);
        job.plan.prompt_tokens - job.plan.cached_tokens
    }

    /// `seat`: where the first token waits for another leg.
    fn begin(
        &mut self,
        now: Instant,
        job: Job,
        (mut resident, begin): (Resident, Begin),
        keep: Option<&mut Handoffs>,
        seat: Option<Seat>,
    ) -> Reply {
        let (plan, profile) = (job.plan, self.setup.profile);
        let first_at = resident.first_at(now, &profile, begin);
        if job.stream {
            if let Some(handoffs) = keep {
                // For a leg that never learns of it: a stream does not show the parameters.
                self.offer(first_at.unwrap_or(now), &job, handoffs);
            }
            let shape = self.shape(now, &job);
            let mut stream = Stream::new(shape, plan, profile, (resident, begin), first_at);
            stream.merge(self.setup.merge);
            if let Some(seat) = seat {
                stream = stream.seated(seat);
            }
            return Reply::Stream(Box::new(stream));
        }
        let pending = Pending::new(plan, profile, resident, begin);
        let ready_at = pending.ready_at(now, first_at);
        let offer = keep.map(|handoffs| self.offer(ready_at, &job, handoffs));
        let parameters = offer.as_ref().map(|(request, blocks)| vllm::Parameters {
            blocks,
            engine: &self.name,
            request,
            host: &self.setup.host,
            port: self.setup.port,
            tokens: plan.prompt_tokens + plan.tokens - 1,
            cached_tokens: plan.cached_tokens,
        });
        let answer = self.whole(now, &job, parameters.as_ref());
        let dialect = self.setup.dialect;
        Reply::Whole(Whole::running(answer, dialect, pending, first_at, seat))
    }

    /// Keeps the KV of a prefill leg; returns the request's name among engines, and its blocks.
    fn offer(
        &mut self,
        ready_at: Instant,
        job: &Job,
        handoffs: &mut Handoffs,
    ) -> (String, Vec<u32>) {
        let child = match job.route {
            Route::Completion => "-0",
            _ => "",
        };
        let request = format!("{}{child}-{:08x}", job.id, self.prng.u64() as u32);
        let tokens = job.plan.prompt_tokens + job.plan.tokens - 1;
        let blocks_total = self.setup.blocks.max(1);
        let blocks: Vec<u32> = (0..tokens.div_ceil(u64::from(self.setup.block_tokens)))
            .map(|_| {
                let block = self.next_block;
                self.next_block = (block + 1) % blocks_total;
                block
            })
            .collect();
        handoffs.offer(
            ready_at,
            self.name,
            request.as_bytes(),
            tokens,
            blocks.clone(),
        );
        (request, blocks)
    }

    /// Whatever is no prefill leg is a decode leg, a plain request too.
    fn leg(&self, route: Route, ask: &Ask) -> Leg {
        let prefills = self.setup.dialect == Dialect::Sglang && self.setup.role == Role::Prefill;
        match (route, &ask.transfer) {
            (Route::Tokenize, _) => Leg::Tokenize,
            (_, Transfer::Make) => Leg::Prefill,
            _ if prefills => Leg::Prefill,
            _ => Leg::Decode,
        }
    }

    /// The time of day.
    pub fn unix_s(&self, now: Instant) -> u64 {
        self.setup.epoch_unix_s + now.nanos() / 1_000_000_000
    }
}

/// One checked request for tokens.
struct Job {
    route: Route,
    /// The answer's id, prefix and all.
    id: String,
    /// The model as the answer names it.
    model: String,
    /// Tokens at the start that are reasoning.
    reasoning: u64,
    plan: Plan,
    prompt_ids: Vec<u32>,
    stream: bool,
    extras: vllm::Extras,
}
