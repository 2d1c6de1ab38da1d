//! A fleet of many engines with profiles, the shards of its router, and requests to place: for tests and benches.

use std::sync::Arc;

use narwhal::base::time::Instant;
use narwhal::base::units::ShardId;
use narwhal::config::topology::Snapshot;
use narwhal::config::{self, Curves, Format, Profile};
use narwhal::metrics::histogram::ShardTimes;
use narwhal::metrics::ledger::ShardLedger;
use narwhal::path::exchange::{Cx, Exchange, Io};
use narwhal::shard::{Shard, Shared};
use narwhal::wire::openai::{self, Route, Rules};

pub const BODY: &[u8] = br#"{"model":"m","prompt":[1,2,3,4,5,6,7,8],"max_tokens":64}"#;

/// A router before so many prefill and as many decode engines.
pub struct Router {
    pub shards: Vec<Shard>,
}

impl Router {
    pub fn new(pairs: usize, shards: usize, placement: &str) -> Router {
        Router::with_cache(pairs, shards, placement, 500_000)
    }

    /// Each engine's KV cache holds so many tokens.
    pub fn with_cache(pairs: usize, shards: usize, placement: &str, cache_tokens: u64) -> Router {
        let snapshot = Arc::new(snapshot(pairs, placement, cache_tokens));
        let shared = Arc::new(Shared::new(&snapshot, shards));
        let shard = |id: usize| {
            Shard::new(
                ShardId(id as u16),
                snapshot.clone(),
                shared.clone(),
                Arc::new(ShardLedger::new()),
                Arc::new(ShardTimes::new()),
                id as u64,
            )
        };
        Router {
            shards: (0..shards).map(shard).collect(),
        }
    }
}

fn snapshot(pairs: usize, placement: &str, cache_tokens: u64) -> Snapshot {
    let mut text = format!(
        "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\nslo = {{ ttft_s = 2.0, tpot_s = 0.05 }}\n\
         [serving]\nadmission = \"predictive\"\nplacement = \"{placement}\"\n"
    );
    for i in 0..2 * pairs {
        let role = if i < pairs { "prefill" } else { "decode" };
        text += &format!(
            "[[engines]]\niid = \"e{i}\"\nurl = \"http://10.0.{}.{}:8000\"\nrole = \"{role}\"\npin = true\n",
            i / 250,
            i % 250 + 1
        );
    }
    let loaded = config::parse("fleet.toml", &text, Format::Toml, &|_| None);
    let fleet = loaded.unwrap_or_else(|why| panic!("{why}")).fleet;
    let profile = |i| Profile {
        iid: format!("e{i}"),
        curves: Curves {
            ttft_a: 1e-9,
            ttft_b: 5e-5,
            ttft_c: 0.01,
            tpot_slope: 1e-8,
            tpot_request_slope: 3e-5,
            tpot_intercept: 0.008,
            decode_min_requests: 1,
            decode_max_requests: 256,
            decode_min_kv_tokens: 1,
            decode_max_kv_tokens: 400_000,
            kv_capacity_tokens: cache_tokens,
        },
        ..Profile::default()
    };
    Snapshot::new(1, fleet).with_profiles((0..2 * pairs).map(profile).collect())
}

/// One request, checked and counted, and what its stages leave behind.
pub struct Asking {
    pub exchange: Exchange,
    pub io: Io,
}

impl Asking {
    pub fn new(now: Instant) -> Asking {
        Asking::of(BODY.to_vec(), now)
    }

    pub fn of(body: Vec<u8>, now: Instant) -> Asking {
        let rules = Rules {
            dialect: config::Dialect::Vllm,
            model: "m",
            aliases: &[],
        };
        let plan = Arc::new(snapshot(1, "price", 500_000));
        let mut exchange =
            Exchange::new(plan, 0, Route::Completions, [b'0'; 36], now, Instant::FAR);
        let checked = openai::check(Route::Completions, &body, &rules);
        exchange.request = Some(checked.expect("the body is a request"));
        exchange.body = body;
        (exchange.prompt_tokens, exchange.sized_tokens) = (1_000, 1_000);
        Asking {
            exchange,
            io: Io::default(),
        }
    }

    /// Hands `what` the exchange and what its stages work with.
    pub fn with<T>(
        &mut self,
        shard: &mut Shard,
        now: Instant,
        what: impl FnOnce(&mut Exchange, &mut Cx) -> T,
    ) -> T {
        let mut cx = Cx {
            shard,
            io: &mut self.io,
            now,
        };
        what(&mut self.exchange, &mut cx)
    }
}
