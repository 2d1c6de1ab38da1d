//! Placement: which engines run the legs of one attempt.
//!
//! By price where engines have profiles, else the engine with the fewest outstanding tokens; ties by iid. Who may serve a role:
//! the live engines of that role; when none of them is pinned and live, every unpinned engine too, for both roles.
//! A `both` engine runs one decode-shaped leg that contains the prefill, and takes part in no two-leg attempt.

use super::price;
use crate::base::units::{EngineId, Role};
use crate::config::topology::Curves;

/// One engine as placement sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub id: EngineId,
    /// The place of its iid among all: who wins a tie.
    pub order: u16,
    pub role: Role,
    pub pin: bool,
    pub curves: Option<Curves>,
    /// Live, and not ejected or draining.
    pub available: bool,
    pub outstanding_tokens: u64,
    pub load: price::Load,
    /// Live ÷ profiled interval.
    pub correction: f64,
    /// Seconds added to its price while it is on probation.
    pub penalty_s: f64,
    /// Leading tokens of the prompt that it said it would hold: what is promised and charged counts by them.
    pub cached_tokens: u64,
    /// Those that it may hold. Where it was never told whether it does, they rank engines and no more.
    pub remembered_tokens: u64,
}

/// Engines that this request may not use, or would rather not.
#[derive(Clone, Debug, Default)]
pub struct Avoid {
    failed: Vec<EngineId>,
    producers: Vec<EngineId>,
    doubted: Vec<EngineId>,
}

/// The legs of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Prefill on one engine, decode on another (or the same, when it is alone).
    TwoLegs { prefill: EngineId, decode: EngineId },
    /// One decode-shaped leg on a `both` engine.
    OneLeg { engine: EngineId },
}

/// How engines are ranked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rank {
    LeastTokens,
    /// Starts at this count and goes round.
    RoundRobin(u64),
    /// By what the request would cost there; every engine has a profile.
    Price(price::Ask),
}

/// Places one attempt, or says that no engine is eligible.
pub fn place(fleet: &[Candidate], avoid: &Avoid, rank: Rank) -> Option<Placement> {
    let two =
        prefill(fleet, avoid, rank).and_then(|p| decode(fleet, avoid, rank, p.id).map(|d| (p, d)));
    let usable = |c: &Candidate| c.role == Role::Both && c.available && !avoid.has_failed(c.id);
    let one = best(fleet, rank, usable, |c| rank.whole_cost(c));
    match (two, one) {
        (None, None) => None,
        (None, Some(one)) => Some(Placement::OneLeg { engine: one.id }),
        (Some((p, d)), one) => match one {
            Some(one) if rank.prefers_single(fleet.len(), one, (p, d)) => {
                Some(Placement::OneLeg { engine: one.id })
            }
            _ => Some(Placement::TwoLegs {
                prefill: p.id,
                decode: d.id,
            }),
        },
    }
}

/// One leg on any engine: for servers that know no roles.
pub fn place_one(fleet: &[Candidate], avoid: &Avoid, rank: Rank) -> Option<Placement> {
    let usable = |c: &Candidate| c.available && !avoid.has_failed(c.id);
    let engine = best(fleet, rank, usable, |c| rank.whole_cost(c))?.id;
    Some(Placement::OneLeg { engine })
}

/// A decode engine for a handoff that `producer` holds.
pub fn place_decode(
    fleet: &[Candidate],
    avoid: &Avoid,
    rank: Rank,
    producer: EngineId,
) -> Option<EngineId> {
    decode(fleet, avoid, rank, producer).map(|c| c.id)
}

/// The engine to ask for a token count: the least busy one that `usable` lets through.
pub fn least_busy(fleet: &[Candidate], usable: impl Fn(EngineId) -> bool) -> Option<EngineId> {
    let usable = |c: &Candidate| c.available && usable(c.id);
    best(fleet, Rank::LeastTokens, usable, |c| {
        Rank::LeastTokens.decode_cost(c)
    })
    .map(|c| c.id)
}

/// Whether some available engine can serve `role` (`Both` engines serve either).
pub fn role_is_served(fleet: &[Candidate], role: Role) -> bool {
    let serves = Serves::of(fleet, role);
    fleet.iter().any(|c| c.available && serves.at_all(c))
}

impl Avoid {
    /// A leg failed there.
    pub fn failed(&mut self, engine: EngineId) {
        if !self.failed.contains(&engine) {
            self.failed.push(engine);
        }
    }

    /// A decode leg failed on KV made there: use it again only when no other is eligible.
    pub fn produced(&mut self, engine: EngineId) {
        if !self.producers.contains(&engine) {
            self.producers.push(engine);
        }
    }

    /// A kept connection to it was dead. That may be all, or it is gone: use it again only when no other is eligible.
    pub fn doubt(&mut self, engine: EngineId) {
        if !self.doubted.contains(&engine) {
            self.doubted.push(engine);
        }
    }

    pub fn has_failed(&self, engine: EngineId) -> bool {
        self.failed.contains(&engine)
    }

    pub fn clear(&mut self) {
        self.failed.clear();
        self.producers.clear();
        self.doubted.clear();
    }
}

fn prefill<'f>(fleet: &'f [Candidate], avoid: &Avoid, rank: Rank) -> Option<&'f Candidate> {
    let serves = Serves::of(fleet, Role::Prefill);
    let usable = |c: &Candidate| c.available && serves.in_a_pair(c) && !avoid.has_failed(c.id);
    best(fleet, rank, usable, |c| Cost {
        reluctant: avoid.producers.contains(&c.id) || avoid.doubted.contains(&c.id),
        ..rank.prefill_cost(c)
    })
}

fn decode<'f>(
    fleet: &'f [Candidate],
    avoid: &Avoid,
    rank: Rank,
    producer: EngineId,
) -> Option<&'f Candidate> {
    let serves = Serves::of(fleet, Role::Decode);
    let usable = |c: &Candidate| c.available && serves.in_a_pair(c) && !avoid.has_failed(c.id);
    best(fleet, rank, usable, |c| Cost {
        reluctant: c.id == producer || avoid.doubted.contains(&c.id),
        ..rank.decode_cost(c)
    })
}

/// The cheapest of those that may be used. Who goes round goes round these.
fn best(
    fleet: &[Candidate],
    rank: Rank,
    usable: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> Cost,
) -> Option<&Candidate> {
    let first = match rank {
        Rank::RoundRobin(turn) => {
            let count = fleet.iter().filter(|c| usable(c)).count().max(1);
            (turn % count as u64) as usize
        }
        _ => 0,
    };
    let ranked = fleet.iter().filter(|c| usable(c)).enumerate();
    let costed = ranked.map(|(n, c)| {
        let cost = match rank {
            // Those from `first` on come before those in front of it.
            Rank::RoundRobin(_) => Cost {
                unserved: n < first,
                ..cost(c)
            },
            _ => cost(c),
        };
        (c, cost)
    });
    costed
        .reduce(|a, b| if b.1 < a.1 { b } else { a })
        .map(|(c, _)| c)
}

/// Who may do the work of a role.
#[derive(Clone, Copy, Debug)]
pub struct Serves {
    role: Role,
    /// Some live engine is pinned to it, so that no other has to.
    pinned: bool,
}

impl Serves {
    pub fn of(fleet: &[Candidate], role: Role) -> Serves {
        let pinned = fleet.iter().any(|c| c.role == role && c.pin && c.available);
        Serves { role, pinned }
    }

    /// In a leg of its own, or in one that does both.
    pub fn at_all(self, c: &Candidate) -> bool {
        c.role == Role::Both || self.in_a_pair(c)
    }

    /// In a two-leg attempt.
    pub fn in_a_pair(self, c: &Candidate) -> bool {
        c.role != Role::Both && (c.role == self.role || !c.pin && !self.pinned)
    }
}

/// What a leg would cost on one engine; the lower one wins, from the first member on.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Cost {
    /// It is taken only when there is no other.
    reluctant: bool,
    /// It would miss its target.
    unserved: bool,
    price: f64,
    order: u16,
}

impl Rank {
    fn prefill_cost(self, c: &Candidate) -> Cost {
        let Rank::Price(ask) = self else {
            return self.decode_cost(c);
        };
        let of = |curves| {
            let price = price::prefill_s(curves, &c.load, &ask, c.remembered_tokens, c.penalty_s);
            (is_late(curves, c, &ask), price)
        };
        let (unserved, price) = c.curves.as_ref().map_or((true, f64::MAX), of);
        Cost::new(c, unserved, price)
    }

    /// Of a leg that reads the prompt and decodes.
    fn whole_cost(self, c: &Candidate) -> Cost {
        let Rank::Price(ask) = self else {
            return self.decode_cost(c);
        };
        let of = |curves| {
            let read = price::prefill_s(curves, &c.load, &ask, c.remembered_tokens, c.penalty_s);
            let (unserved, write) = price::decode_s(curves, &c.load, &ask, c.correction);
            (unserved || is_late(curves, c, &ask), read + write)
        };
        let (unserved, price) = c.curves.as_ref().map_or((true, f64::MAX), of);
        Cost::new(c, unserved, price)
    }

    /// A whole request against a pair of engines: by what decoding costs, once targets are met.
    fn prefers_single(
        self,
        engines: usize,
        one: &Candidate,
        pair: (&Candidate, &Candidate),
    ) -> bool {
        if let Rank::RoundRobin(turn) = self {
            // A whole round each, so that both get to all of theirs.
            return turn / engines as u64 % 2 == 1;
        }
        let single = Cost {
            unserved: self.whole_cost(one).unserved,
            ..self.decode_cost(one)
        };
        let decode = self.decode_cost(pair.1);
        let pair = Cost {
            unserved: decode.unserved || self.prefill_cost(pair.0).unserved,
            ..decode
        };
        single < pair
    }

    /// Of a leg that decodes.
    fn decode_cost(self, c: &Candidate) -> Cost {
        match self {
            Rank::Price(ask) => {
                let of = |curves| price::decode(curves, &c.load, &ask, c.correction);
                let (unserved, price) = c.curves.as_ref().map_or((true, f64::MAX), of);
                Cost::new(c, unserved, price)
            }
            // Sums stay far below 2^53.
            Rank::LeastTokens => Cost::new(c, false, c.outstanding_tokens as f64),
            // In the order of the file.
            Rank::RoundRobin(_) => Cost::new(c, false, f64::from(c.id.0)),
        }
    }
}

/// Whether the prompt would be read later than the first token is due, by what the engine said it holds of it. A penalty is no time.
fn is_late(curves: &Curves, c: &Candidate, ask: &price::Ask) -> bool {
    price::prefill_s(curves, &c.load, ask, c.cached_tokens, 0.0) > ask.ttft_s
}

impl Cost {
    /// Prices are finite: those of measured curves are clamped.
    fn new(c: &Candidate, unserved: bool, price: f64) -> Cost {
        debug_assert!(price.is_finite(), "{price}");
        Cost {
            reluctant: false,
            unserved,
            price,
            order: c.order,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `p` prefill, `d` decode, `b` both; upper case is pinned; `!` marks one that is down; the number is its load.
    fn fleet(spec: &str) -> Vec<Candidate> {
        spec.split(' ')
            .enumerate()
            .map(|(i, word)| {
                let kind = word.as_bytes()[0];
                let load = word[1..].trim_end_matches('!');
                Candidate {
                    id: EngineId(i as u16),
                    order: i as u16,
                    role: match kind.to_ascii_lowercase() {
                        b'p' => Role::Prefill,
                        b'd' => Role::Decode,
                        _ => Role::Both,
                    },
                    pin: kind.is_ascii_uppercase(),
                    available: !word.ends_with('!'),
                    outstanding_tokens: load.parse().unwrap(),
                    curves: None,
                    load: price::Load::default(),
                    correction: 1.0,
                    penalty_s: 0.0,
                    cached_tokens: 0,
                    remembered_tokens: 0,
                }
            })
            .collect()
    }

    fn two(p: u16, d: u16) -> Option<Placement> {
        Some(Placement::TwoLegs {
            prefill: EngineId(p),
            decode: EngineId(d),
        })
    }

    fn one(e: u16) -> Option<Placement> {
        Some(Placement::OneLeg {
            engine: EngineId(e),
        })
    }

    // proves R-LEG-4, R-ADM-7
    #[test]
    fn roles_pins_and_loads() {
        let rows = [
            ("P0 P1 D0 D1", two(0, 2)),
            ("P5 P1 D7 D3", two(1, 3)),
            ("P0! P1 D0 D1!", two(1, 2)),
            ("P0! P1! D0 D1", None),
            ("P0 D0!", None),
            // A role without a live pinned engine is served by unpinned ones, both roles, in two legs.
            ("d0", two(0, 0)),
            ("d0 d1", two(0, 1)),
            ("P0! d3 d4", two(1, 2)),
            ("P0 d3", two(0, 1)),
            // `both` is one leg; it competes with the decode engine of the pair.
            ("B0", one(0)),
            ("B0 B5", one(0)),
            ("P0 D4 B2", one(2)),
            ("P0 D1 B2", two(0, 1)),
            ("P0! D1 B2", one(2)),
            ("D1 B2!", None),
        ];
        for (spec, want) in rows {
            let got = place(&fleet(spec), &Avoid::default(), Rank::LeastTokens);
            assert_eq!(got, want, "{spec}");
        }
    }

    // proves R-FLT-4
    #[test]
    fn failed_engines_are_out_and_producers_come_last() {
        let f = fleet("P0 P1 D0 D1");
        let mut avoid = Avoid::default();
        avoid.failed(EngineId(2));
        avoid.produced(EngineId(0));
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), two(1, 3));
        avoid.failed(EngineId(1));
        assert_eq!(
            place(&f, &avoid, Rank::LeastTokens),
            two(0, 3),
            "the producer when it is alone"
        );
        avoid.failed(EngineId(3));
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), None);
        avoid.clear();
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), two(0, 2));
    }

    // proves R-FLT-4
    #[test]
    fn an_engine_whose_kept_connection_was_dead_comes_last() {
        let f = fleet("P0 P1 D0 D1");
        let mut avoid = Avoid::default();
        avoid.doubt(EngineId(2));
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), two(0, 3));
        avoid.doubt(EngineId(0));
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), two(1, 3));
        avoid.failed(EngineId(3));
        assert_eq!(
            place(&f, &avoid, Rank::LeastTokens),
            two(1, 2),
            "it may be the only one"
        );
        avoid.clear();
        assert_eq!(place(&f, &avoid, Rank::LeastTokens), two(0, 2));
    }

    // proves R-SCH-2, R-SCH-6
    #[test]
    fn one_leg_goes_where_its_seconds_are_fewest() {
        let curves = Curves {
            ttft_b: 1e-4,
            tpot_intercept: 0.01,
            tpot_request_slope: 1e-3,
            decode_max_requests: 100,
            decode_max_kv_tokens: 1_000_000,
            kv_capacity_tokens: 1_000_000,
            ..Curves::default()
        };
        let ask = price::Ask {
            prompt_tokens: 10_000,
            own_tokens: 10_100,
            ttft_s: 100.0,
            tpot_s: 0.05,
        };
        // On the second: tokens held, backlog, residents; which of the two it is.
        let rows = [
            (0, 0.0, 0, 0),
            (1_000, 0.0, 0, 1),
            // A tenth of a second is saved, and no more waited for.
            (1_000, 0.09, 0, 1),
            (1_000, 0.11, 0, 0),
            // Its output would take 0.1 s longer for each of those who decode there.
            (8_000, 0.0, 7, 1),
            (8_000, 0.0, 9, 0),
            // The target comes first.
            (9_999, 0.0, 40, 0),
        ];
        for (held, backlog_s, residents, want) in rows {
            for spec in ["B0 B0", "P0! B0 B0"] {
                let mut f = fleet(spec);
                for c in &mut f {
                    c.curves = Some(curves);
                }
                let first = f.len() - 2;
                let second = &mut f[first + 1];
                second.remembered_tokens = held;
                second.load.backlog_s = backlog_s;
                second.load.residents = residents;
                let want = one((first + want) as u16);
                let avoid = Avoid::default();
                assert_eq!(
                    place(&f, &avoid, Rank::Price(ask)),
                    want,
                    "{held} {backlog_s}"
                );
                assert_eq!(place_one(&f, &avoid, Rank::Price(ask)), want, "{residents}");
            }
        }
    }

    // proves R-SCH-6
    #[test]
    fn a_held_prefix_is_worth_its_seconds() {
        let curves = Curves {
            ttft_b: 1e-4,
            ..Curves::default()
        };
        let ask = price::Ask {
            prompt_tokens: 10_000,
            own_tokens: 10_100,
            ttft_s: 100.0,
            tpot_s: 0.05,
        };
        for (held, backlog_s, want) in [(0, 0.0, 0), (6_000, 0.59, 1), (6_000, 0.61, 0)] {
            let mut f = fleet("P0 P0 D0");
            for c in &mut f {
                c.curves = Some(curves);
            }
            f[1].remembered_tokens = held;
            f[1].load.backlog_s = backlog_s;
            let got = place(&f, &Avoid::default(), Rank::Price(ask));
            assert_eq!(got, two(want, 2), "{held} {backlog_s}");
        }
    }

    // proves R-LEG-5
    #[test]
    fn servers_without_roles_get_whole_requests() {
        let f = fleet("D3 P1 B2 d0!");
        let mut avoid = Avoid::default();
        for want in [one(1), one(2), one(0), None] {
            let got = place_one(&f, &avoid, Rank::LeastTokens);
            assert_eq!(got, want);
            if let Some(Placement::OneLeg { engine }) = got {
                avoid.failed(engine);
            }
        }
    }

    #[test]
    fn round_robin_goes_round() {
        // engines, who reads, who decodes
        let mixed = fleet("P0 D0 B0");
        let placed = |turn| place(&mixed, &Avoid::default(), Rank::RoundRobin(turn));
        assert_eq!(
            [placed(0), placed(2), placed(3)],
            [two(0, 1), two(0, 1), one(2)]
        );
        let rows: [(&str, [u16; 5], [u16; 5]); 3] = [
            ("b0 b0 b0", [0, 1, 2, 0, 1], [0, 1, 2, 0, 1]),
            ("P0 P0 P0 D0 D0", [0, 1, 2, 0, 1], [3, 4, 3, 4, 3]),
            ("P0 P0! P0 D0", [0, 2, 0, 2, 0], [3; 5]),
        ];
        for (spec, reads, decodes) in rows {
            let f = fleet(spec);
            for turn in 0..5 {
                let rank = Rank::RoundRobin(turn as u64);
                let want = match spec.contains('P') {
                    true => two(reads[turn], decodes[turn]),
                    false => one(reads[turn]),
                };
                assert_eq!(place(&f, &Avoid::default(), rank), want, "{spec} {turn}");
            }
        }
    }

    #[test]
    fn decode_is_placed_again_for_a_handoff() {
        let f = fleet("P0 D0! D1");
        let avoid = Avoid::default();
        assert_eq!(
            place_decode(&f, &avoid, Rank::LeastTokens, EngineId(0)),
            Some(EngineId(2))
        );
    }

    // proves R-CTL-1
    #[test]
    fn a_role_is_served_by_its_own_by_unpinned_or_by_both() {
        for (spec, prefill, decode) in [
            ("P0 D0", true, true),
            ("P0 D0!", true, false),
            ("P0! D0", false, true),
            ("P0! d0", true, true),
            ("B0", true, true),
            ("P0 B0!", true, false),
        ] {
            let f = fleet(spec);
            assert_eq!(role_is_served(&f, Role::Prefill), prefill, "{spec}");
            assert_eq!(role_is_served(&f, Role::Decode), decode, "{spec}");
        }
    }
}
