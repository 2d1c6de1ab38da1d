//! Prices: what it would cost to run a request's legs on each engine, in seconds and in KV tokens, from measured profiles.
//!
//! Pure arithmetic over a reading of the load board. A prefill engine costs its backlog and the prompt's own seconds. A decode engine costs
//! its resident KV and the request's own length, less its headroom: the KV at which the interval between tokens reaches the target with
//! one more request. Engines that would keep the target come before those that would not.

use crate::config::topology::Curves;

/// What one engine is charged with now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Seconds of prefill promised and not yet done, and the prompts they are for.
    pub backlog_s: f64,
    pub prompts: u64,
    /// Requests that decode there, and the KV they hold or will hold.
    pub residents: u64,
    pub kv_tokens: u64,
    /// Tokens that they may still generate.
    pub output_tokens: u64,
}

/// What a request asks of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    pub prompt_tokens: u64,
    /// Prompt and output.
    pub own_tokens: u64,
    /// Seconds that are left for reading the prompt.
    pub ttft_s: f64,
    pub tpot_s: f64,
}

/// Why a decode engine should not take one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Slot,
    Kv,
    Tpot,
}

/// Seconds to read a prompt of which an engine still holds `cached_tokens`: the share of what it has to read, and no less than what any
/// prompt takes.
pub fn prompt_s(curves: &Curves, prompt_tokens: u64, cached_tokens: u64) -> f64 {
    let whole = curves.prefill_s(prompt_tokens);
    // As engines do, the last token is always read.
    let cached = cached_tokens.min(prompt_tokens.saturating_sub(1));
    if cached == 0 {
        return whole;
    }
    let share = (prompt_tokens - cached) as f64 / prompt_tokens as f64;
    (whole * share).max(curves.prefill_s(0)).min(whole)
}

/// Seconds until the prompt would be read. `penalty_s`: what is added for an engine on probation.
pub fn prefill_s(
    curves: &Curves,
    load: &Load,
    ask: &Ask,
    cached_tokens: u64,
    penalty_s: f64,
) -> f64 {
    load.backlog_s + prompt_s(curves, ask.prompt_tokens, cached_tokens) + penalty_s
}

/// Whether the target for the time between tokens would be missed, and the price in KV tokens. Lower is better, in this order.
pub fn decode(curves: &Curves, load: &Load, ask: &Ask, correction: f64) -> (bool, f64) {
    let requests = load.residents + 1;
    let kv = load.kv_tokens + ask.own_tokens;
    let unserved = correction * curves.interval_s(kv, requests) > ask.tpot_s;
    let headroom = curves.headroom_tokens(correction, requests, ask.tpot_s);
    (unserved, kv as f64 - headroom)
}

/// Whether the target would be missed, and the seconds that the request's own tokens would take.
pub fn decode_s(curves: &Curves, load: &Load, ask: &Ask, correction: f64) -> (bool, f64) {
    let (requests, kv) = (load.residents + 1, load.kv_tokens + ask.own_tokens);
    let interval = correction * curves.interval_s(kv, requests);
    let output_tokens = ask.own_tokens.saturating_sub(ask.prompt_tokens);
    (interval > ask.tpot_s, interval * output_tokens as f64)
}

/// What speaks against one more request there; `None` too for a request that would be alone. `slot_wait_s`: how long a wait for a slot may
/// be.
pub fn unfit(
    curves: &Curves,
    load: &Load,
    ask: &Ask,
    correction: f64,
    slot_wait_s: f64,
) -> Option<Unfit> {
    if load.residents == 0 {
        return None;
    }
    let kv = load.kv_tokens + ask.own_tokens;
    if load.residents >= curves.decode_max_requests
        && slot_s(curves, load, correction) > slot_wait_s
    {
        return Some(Unfit::Slot);
    }
    if kv > curves.kv_capacity_tokens {
        return Some(Unfit::Kv);
    }
    let interval = correction * curves.interval_s(kv, load.residents + 1);
    (interval > ask.tpot_s).then_some(Unfit::Tpot)
}

/// Seconds until there is a slot for one more behind all residents, those that wait for one themselves included: so many of them have to
/// end, one each time that the slots together have written a mean answer.
fn slot_s(curves: &Curves, load: &Load, correction: f64) -> f64 {
    let (residents, slots) = (load.residents as f64, curves.decode_max_requests as f64);
    let mean_tokens = load.output_tokens as f64 / residents;
    // KV and requests of those that have a slot.
    let kv_tokens = load.kv_tokens as f64 * slots / residents;
    let interval_s = correction * curves.interval_s(kv_tokens as u64, curves.decode_max_requests);
    (residents + 1.0 - slots) * interval_s * mean_tokens / slots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Curves {
        Curves {
            ttft_b: 0.001,
            tpot_slope: 1e-6,
            tpot_request_slope: 0.001,
            tpot_intercept: 0.01,
            decode_min_requests: 1,
            decode_max_requests: 2,
            decode_min_kv_tokens: 1,
            decode_max_kv_tokens: 50_000,
            kv_capacity_tokens: 10_000,
            ..Curves::default()
        }
    }

    fn ask(own_tokens: u64, tpot_s: f64) -> Ask {
        Ask {
            prompt_tokens: 100,
            own_tokens,
            ttft_s: 1.0,
            tpot_s,
        }
    }

    fn load(residents: u64, kv_tokens: u64) -> Load {
        Load {
            backlog_s: 2.0,
            prompts: 1,
            residents,
            kv_tokens,
            output_tokens: 100 * residents,
        }
    }

    // proves R-SCH-2
    #[test]
    fn prices_follow_their_formulas() {
        let p = curves();
        // prompt of 100 tokens: cached, penalty, seconds
        for (cached, penalty, want) in [
            (0, 0.0, 2.1),
            (0, 1.5, 3.6),
            (50, 0.0, 2.05),
            (99, 0.0, 2.001),
            (100, 0.0, 2.001),
            (u64::MAX, 0.0, 2.001),
        ] {
            let got = prefill_s(&p, &load(0, 0), &ask(200, 1.0), cached, penalty);
            assert!((got - want).abs() < 1e-9, "{cached} {penalty}: {got}");
        }
        assert_eq!(prompt_s(&p, 0, 5), 0.0);
        // With one more there are 2 requests: 12 ms fixed, so 13 ms leave room for 1,000 tokens.
        let (unserved, price) = decode(&p, &load(1, 500), &ask(200, 0.013), 1.0);
        assert!(!unserved);
        assert!((price - (700.0 - 1_000.0)).abs() < 1e-6, "{price}");
        let (unserved, price) = decode(&p, &load(1, 900), &ask(200, 0.013), 1.0);
        assert!(unserved);
        assert!((price - 100.0).abs() < 1e-6, "{price}");
        // A slower engine than measured has less room.
        assert!(decode(&p, &load(1, 500), &ask(200, 0.013), 1.1).0);
    }

    // proves R-SCH-6
    #[test]
    fn of_a_prompt_only_what_is_not_held_counts() {
        let p = Curves {
            ttft_c: 0.03,
            ..curves()
        };
        // prompt, held, seconds
        let rows = [
            (100, 0, 0.13),
            (100, 50, 0.065),
            (100, 90, 0.03),
            (100, 100, 0.03),
            (100, 500, 0.03),
            (1, 1, 0.031),
            (0, 5, 0.03),
        ];
        for (prompt, held, want) in rows {
            let got = prompt_s(&p, prompt, held);
            assert!((got - want).abs() < 1e-9, "{prompt} {held}: {got}");
        }
        // A line that was fitted below 0 in front.
        let odd = Curves { ttft_c: -0.05, ..p };
        assert!((prompt_s(&odd, 100, 50) - 0.025).abs() < 1e-9);
        assert_eq!(prompt_s(&odd, 10, 5), 0.0);
    }

    // proves R-ADM-5
    #[test]
    fn each_check_speaks_for_itself_and_none_to_a_lone_request() {
        let p = curves();
        // residents, KV, own, target for the interval, seconds to wait for a slot
        let rows = [
            (0, 0, 999_999, 0.0, 0.0, None),
            (1, 100, 100, 1.0, 0.0, None),
            (2, 100, 100, 1.0, 0.5, Some(Unfit::Slot)),
            // Two residents of 100 tokens at 12.1 ms: one ends in about 0.6 s.
            (2, 100, 100, 1.0, 0.7, None),
            // A third one waits already: two have to end.
            (3, 100, 100, 1.0, 1.1, Some(Unfit::Slot)),
            (3, 100, 100, 1.0, 1.3, None),
            (1, 9_950, 51, 1.0, 0.0, Some(Unfit::Kv)),
            (1, 9_950, 50, 1.0, 0.0, None),
            (1, 100, 100, 0.012_1, 0.0, Some(Unfit::Tpot)),
        ];
        for (residents, kv, own, tpot, wait, want) in rows {
            let got = unfit(&p, &load(residents, kv), &ask(own, tpot), 1.0, wait);
            assert_eq!(got, want, "{residents} {kv} {own} {tpot} {wait}");
        }
    }
}
