//! The lines that exchanges wait in, as a shadow: who stands in each, by ticket, over all shards.
//!
//! Granted are always the lowest tickets of a line, so whoever comes in from it has one of them; an arrival that is let in at once passes
//! nobody. A line for seats is never longer than its capacity. Between a grant and its claim the permit is out and its exchange
//! still in the line: that difference is checked too.
//!
//! Cross-shard wake-ups are mail: they wait in `ShardSim::mail` and reach a shard in [`World::mail_turn`], when the seed lets it. Some
//! are lost, and the shard finds its grant when it looks around.

use std::collections::{BTreeMap, BTreeSet};

use narwhal::path::peek::{Held, View};
use narwhal::shard::board::Phase;
use narwhal::shard::gate::Ticket;
use narwhal::shard::waits::Awaited;

use crate::world::{World, engine_id};

#[derive(Debug, Default)]
pub struct Lines(BTreeMap<Awaited, Line>);

#[derive(Debug, Default)]
struct Line {
    /// Tickets whose exchange has not come in yet.
    standing: BTreeSet<Ticket>,
    /// Of these, granted and not yet claimed, after the last step.
    granted: usize,
}

/// After every step of any connection: what it held before, and holds now.
pub fn check(world: &mut World, before: &View, after: &View) {
    let (old, new) = (before.exchange, after.exchange);
    let place = |held: Option<Held>| held.and_then(|held| held.place);
    if let Some((line, ticket)) = place(old).filter(|p| place(new) != Some(*p)) {
        let came_in = new.is_some_and(|held| is_in(&held, line));
        let standing = world.lines.0.entry(line).or_default();
        let rank = standing.standing.range(..ticket).count();
        assert!(
            !came_in || rank < standing.granted,
            "{line:?}: {ticket:?} came in before {rank} others, {} were let in",
            standing.granted
        );
        assert!(standing.standing.remove(&ticket), "a place is left once");
        world.cover.queued += u64::from(came_in);
    }
    if let Some((line, ticket)) = place(new).filter(|p| place(old) != Some(*p)) {
        let standing = &mut world.lines.0.entry(line).or_default().standing;
        let last = standing.last().copied();
        assert!(
            last.is_none_or(|last| last < ticket),
            "a ticket out of order"
        );
        standing.insert(ticket);
    }
    check_gates(world);
    // Whoever was let in without a wait passed nobody.
    let had = old.is_some_and(|held| held.seat || held.place.is_some());
    let has = new.is_some_and(|held| held.seat);
    assert!(
        had || !has || world.shared.seats.waiting() == 0,
        "an arrival took a seat before those who wait"
    );
}

/// Also after grants that no connection's step makes.
pub fn check_gates(world: &mut World) {
    let shared = world.shared.clone();
    let seats = world.books.seats;
    check_gate(world, Awaited::Seat, &shared.seats, seats);
    let capacity = world.plan.snapshot.fleet.serving.queue_capacity;
    assert!(shared.seats.waiting() <= capacity, "the queue is too long");
    for i in 0..shared.board.len() {
        for phase in [Phase::Prefill, Phase::Decode] {
            if let Some(gate) = shared.phase(engine_id(i), phase) {
                let inside = world.books.phases[i][phase as usize];
                let line = Awaited::Phase(engine_id(i), phase);
                check_gate(world, line, gate, inside);
            }
        }
    }
}

/// Permits out = exchanges that are in + grants that are not claimed yet, within the limit.
fn check_gate(world: &mut World, line: Awaited, gate: &narwhal::shard::gate::Gate, inside: u64) {
    let (held, waiting) = (gate.held(), gate.waiting());
    let entry = world.lines.0.entry(line).or_default();
    let granted = entry.standing.len().checked_sub(waiting);
    let granted = granted.expect("who waits in the gate stands in the line");
    entry.granted = granted;
    assert_eq!(held, inside + granted as u64, "{line:?}");
    // Whoever waited at an engine that left was let go on, and may not have looked yet when it is back.
    let back = matches!(line, Awaited::Phase(engine, _) if world.reloads.returned[engine.index()]);
    assert!(back || held <= gate.limit(), "{line:?} is over its limit");
    assert!(
        waiting == 0 || held == gate.limit() || back && held > gate.limit(),
        "{line:?}: {waiting} wait and {held} of {} are out",
        gate.limit()
    );
}

/// Whether it has what is waited for there.
fn is_in(held: &Held, line: Awaited) -> bool {
    match line {
        Awaited::Seat => held.seat,
        Awaited::Phase(engine, phase) => held.phases[phase as usize] == Some(engine),
    }
}
