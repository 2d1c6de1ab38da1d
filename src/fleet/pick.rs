//! Placement: which engines run the legs of one attempt.
//!
//! By price where engines have profiles, else the engine with the fewest outstanding tokens; ties by iid. Who may serve a role:
//! the live engines of that role; when none of them is pinned and live, every unpinned engine too, for both roles.
//! A `both` engine runs one decode-shaped leg that contains the prefill, and takes part in no two-leg attempt.

use std::cmp::Ordering;

use super::price;
use crate::base::units::{EngineId, Role};
use crate::config::topology::Profile;

/// One engine as placement sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub id: EngineId,
    pub iid: &'a str,
    pub role: Role,
    pub pin: bool,
    /// Live, and not ejected or draining.
    pub available: bool,
    pub outstanding_tokens: u64,
    pub load: price::Load,
    pub profile: Option<&'a Profile>,
}

/// Engines that this request may not use, or would rather not.
#[derive(Clone, Debug, Default)]
pub struct Avoid {
    failed: Vec<EngineId>,
    producers: Vec<EngineId>,
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
        prefill(fleet, avoid, rank).and_then(|p| decode(fleet, avoid, rank, p).map(|d| (p, d)));
    let one = fleet
        .iter()
        .filter(|c| c.role == Role::Both && c.available && !avoid.has_failed(c.id))
        .min_by(|a, b| rank.order(fleet.len(), a, b));
    match (two, one) {
        (None, None) => None,
        (None, Some(one)) => Some(Placement::OneLeg { engine: one.id }),
        (Some((p, d)), one) => match one {
            Some(one) if rank.order(fleet.len(), one, d).is_lt() => {
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
    let usable = |c: &&Candidate| c.available && !avoid.has_failed(c.id);
    let best = fleet.iter().filter(usable);
    let best = best.min_by(|a, b| rank.order(fleet.len(), a, b))?;
    Some(Placement::OneLeg { engine: best.id })
}

/// A decode engine for a handoff that `producer` holds.
pub fn place_decode(
    fleet: &[Candidate],
    avoid: &Avoid,
    rank: Rank,
    producer: EngineId,
) -> Option<EngineId> {
    let producer = fleet.iter().find(|c| c.id == producer)?;
    decode(fleet, avoid, rank, producer).map(|c| c.id)
}

/// The engine to ask for a token count: the least busy one that `usable` lets through.
pub fn least_busy(fleet: &[Candidate], usable: impl Fn(EngineId) -> bool) -> Option<EngineId> {
    fleet
        .iter()
        .filter(|c| c.available && usable(c.id))
        .min_by(|a, b| Rank::LeastTokens.order(fleet.len(), a, b))
        .map(|c| c.id)
}

/// Whether some available engine can serve `role` (`Both` engines serve either).
pub fn role_is_served(fleet: &[Candidate], role: Role) -> bool {
    fleet
        .iter()
        .any(|c| c.available && may_serve(fleet, c, role))
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

    pub fn has_failed(&self, engine: EngineId) -> bool {
        self.failed.contains(&engine)
    }

    pub fn clear(&mut self) {
        self.failed.clear();
        self.producers.clear();
    }
}

fn prefill<'a, 'f>(
    fleet: &'f [Candidate<'a>],
    avoid: &Avoid,
    rank: Rank,
) -> Option<&'f Candidate<'a>> {
    fleet
        .iter()
        .filter(|c| c.available && serves(fleet, c, Role::Prefill) && !avoid.has_failed(c.id))
        .min_by(|a, b| {
            let reluctant = |c: &Candidate| avoid.producers.contains(&c.id);
            reluctant(a)
                .cmp(&reluctant(b))
                .then(rank.order_prefill(fleet.len(), a, b))
        })
}

fn decode<'a, 'f>(
    fleet: &'f [Candidate<'a>],
    avoid: &Avoid,
    rank: Rank,
    producer: &Candidate,
) -> Option<&'f Candidate<'a>> {
    fleet
        .iter()
        .filter(|c| c.available && serves(fleet, c, Role::Decode) && !avoid.has_failed(c.id))
        .min_by(|a, b| {
            let same = |c: &Candidate| c.id == producer.id;
            same(a).cmp(&same(b)).then(rank.order(fleet.len(), a, b))
        })
}

/// Whether `c` may do the work of `role`, in a leg of its own or in one that does both.
pub fn may_serve(fleet: &[Candidate], c: &Candidate, role: Role) -> bool {
    c.role == Role::Both || serves(fleet, c, role)
}

/// Whether `c` may run a leg of `role` in a two-leg attempt.
fn serves(fleet: &[Candidate], c: &Candidate, role: Role) -> bool {
    if c.role == Role::Both {
        return false;
    }
    c.role == role || !c.pin && !fleet.iter().any(|o| o.role == role && o.pin && o.available)
}

/// Live ÷ profiled interval, until it is learned.
pub const CORRECTION: f64 = 1.0;

impl Rank {
    /// For prefill legs.
    fn order_prefill(self, engines: usize, a: &Candidate, b: &Candidate) -> Ordering {
        let Rank::Price(ask) = self else {
            return self.order(engines, a, b);
        };
        let price = |c: &Candidate| {
            c.profile
                .map_or(f64::MAX, |p| price::prefill_s(p, &c.load, &ask))
        };
        let by_price = price(a).total_cmp(&price(b));
        by_price.then_with(|| a.iid.cmp(b.iid))
    }

    /// For legs that decode.
    fn order(self, engines: usize, a: &Candidate, b: &Candidate) -> Ordering {
        match self {
            Rank::Price(ask) => {
                let price = |c: &Candidate| {
                    let of = |p| price::decode(p, &c.load, &ask, CORRECTION);
                    c.profile.map_or((true, f64::MAX), of)
                };
                let ((a_late, a_price), (b_late, b_price)) = (price(a), price(b));
                let by_price = a_late.cmp(&b_late).then(a_price.total_cmp(&b_price));
                by_price.then_with(|| a.iid.cmp(b.iid))
            }
            Rank::LeastTokens => a
                .outstanding_tokens
                .cmp(&b.outstanding_tokens)
                .then_with(|| a.iid.cmp(b.iid)),
            Rank::RoundRobin(turn) => {
                let n = engines.max(1) as u64;
                let place = |c: &Candidate| (c.id.0 as u64 + n - turn % n) % n;
                place(a).cmp(&place(b))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `p` prefill, `d` decode, `b` both; upper case is pinned; `!` marks one that is down; the number is its load.
    fn fleet(spec: &'static str) -> Vec<Candidate<'static>> {
        spec.split(' ')
            .enumerate()
            .map(|(i, word)| {
                let kind = word.as_bytes()[0];
                let load = word[1..].trim_end_matches('!');
                Candidate {
                    id: EngineId(i as u16),
                    iid: word,
                    role: match kind.to_ascii_lowercase() {
                        b'p' => Role::Prefill,
                        b'd' => Role::Decode,
                        _ => Role::Both,
                    },
                    pin: kind.is_ascii_uppercase(),
                    available: !word.ends_with('!'),
                    outstanding_tokens: load.parse().unwrap(),
                    load: price::Load::default(),
                    profile: None,
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
        let f = fleet("b0 b0 b0");
        let picks: Vec<_> = (0..4)
            .map(|turn| place(&f, &Avoid::default(), Rank::RoundRobin(turn)).unwrap())
            .collect();
        let want: Vec<_> = [0, 1, 2, 0].iter().map(|i| one(*i).unwrap()).collect();
        assert_eq!(picks, want);
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
