//! The fleets that a run chooses from: two legs with pinned roles, engines that do both, one engine for everything, a server
//! without token ids, and legs side by side. Checked once for all runs.

use std::sync::{Arc, OnceLock};

use crate::config::{self, Admission, Curves, Format, Profile, Snapshot};

pub const FLEETS: usize = 5;

/// Small limits, so that short tapes reach them.
pub fn snapshots() -> &'static [Arc<Snapshot>; FLEETS] {
    static SNAPSHOTS: OnceLock<[Arc<Snapshot>; FLEETS]> = OnceLock::new();
    const COMMON: &str = r#"
        schema = "narwhal.fleet"
        schema_version = 2
        model = "m"
        model_aliases = ["alias"]
        slo = { ttft_s = 2.0, tpot_s = 0.05 }
        runtime = { max_header_bytes = 1024, max_headers = 12, client_keepalive_s = KEEP_ALIVE_S }
        [serving]
        admission = "open"
        max_connections = 1
        queue_capacity = QUEUE
        queue_timeout_s = 5
        max_retained = 2
        decode_concurrency = DECODES
        prefill_concurrency = DECODES
        max_attempts = 3
        max_request_bytes = 2048
        max_response_bytes = 4096
    "#;
    const REST: [&str; FLEETS] = [
        r#"
        [engine]
        kv_lease_s = 30
        [[engines]]
        iid = "p0"
        url = "http://10.0.0.1:8000/base"
        role = "prefill"
        pin = true
        [[engines]]
        iid = "p1"
        url = "http://10.0.0.2:8000"
        role = "prefill"
        pin = true
        [[engines]]
        iid = "d0"
        url = "http://10.0.0.3:8000"
        [[engines]]
        iid = "d1"
        url = "http://10.0.0.4:8000"
        "#,
        r#"
        [engine]
        tokenize = false
        connector = "none"
        decode_read_timeout_s = 0
        [[engines]]
        iid = "b0"
        url = "http://10.0.0.1:8000"
        role = "both"
        [[engines]]
        iid = "b1"
        url = "http://10.0.0.2:8000"
        role = "both"
        "#,
        r#"
        [engine]
        first_token_timeout_s = 1
        assembly_extra_fields = ["audio"]
        [[engines]]
        iid = "d0"
        url = "http://10.0.0.1:8000"
        "#,
        r#"
        [engine]
        dialect = "openai"
        connector = "none"
        tokenize = false
        [[engines]]
        iid = "o0"
        url = "http://10.0.0.1:8000"
        role = "both"
        [[engines]]
        iid = "o1"
        url = "http://10.0.0.2:8000"
        role = "both"
        "#,
        r#"
        [engine]
        dialect = "sglang"
        tokenize = false
        [[engines]]
        iid = "p0"
        url = "http://10.0.0.1:8000"
        role = "prefill"
        pin = true
        [[engines]]
        iid = "p1"
        url = "http://10.0.0.2:8000"
        role = "prefill"
        pin = true
        [[engines]]
        iid = "d0"
        url = "http://10.0.0.3:8000"
        pin = true
        [[engines]]
        iid = "d1"
        url = "http://10.0.0.4:8000"
        pin = true
        "#,
    ];
    const PREDICTS: [bool; FLEETS] = [false, false, true, false, true];
    // A line for seats, bounds on phases, and comments to waiting clients, on some.
    const QUEUE: [&str; FLEETS] = ["1", "0", "2", "0", "1"];
    const DECODES: [&str; FLEETS] = ["1", "0", "0", "1", "1"];
    const KEEP_ALIVE_S: [&str; FLEETS] = ["20", "0", "0", "0", "20"];
    SNAPSHOTS.get_or_init(|| {
        std::array::from_fn(|i| {
            let common = COMMON
                .replace("KEEP_ALIVE_S", KEEP_ALIVE_S[i])
                .replace("QUEUE", QUEUE[i])
                .replace("DECODES", DECODES[i]);
            let text = format!("{common}{}", REST[i]);
            let loaded = config::parse("fuzz.toml", &text, Format::Toml, &|_| None);
            let fleet = loaded.unwrap_or_else(|why| panic!("{why}")).fleet;
            let snapshot = Snapshot::new(1, fleet);
            Arc::new(if PREDICTS[i] {
                predictive(snapshot)
            } else {
                snapshot
            })
        })
    })
}

/// With profiles under which short waits and second requests come near the targets.
fn predictive(mut snapshot: Snapshot) -> Snapshot {
    snapshot.fleet.serving.admission = Admission::Predictive;
    let profile = |iid: &String| Profile {
        iid: iid.clone(),
        curves: Curves {
            ttft_b: 0.1,
            ttft_c: 0.2,
            tpot_intercept: 0.03,
            tpot_request_slope: 0.01,
            decode_min_requests: 1,
            decode_max_requests: 2,
            decode_min_kv_tokens: 1,
            decode_max_kv_tokens: 1_000,
            kv_capacity_tokens: 1_000,
            ..Curves::default()
        },
        ..Profile::default()
    };
    let profiles = snapshot.engines.iter().map(|e| profile(&e.iid)).collect();
    snapshot.with_profiles(profiles)
}
