//! The connection machine against a hostile world: any bytes are a tape that decides what a client sends and in which cuts, what
//! engines answer, what breaks, and how the clock moves. After every step the books must balance; at the end everything is back.
//!
//! Mostly the tape chooses valid requests and valid streams with faults mixed in, because those reach deep states; some of its bytes
//! go out raw. Past its end the tape says zero, which is always the plain and good choice. Same tape, same trace.
//! Owns nothing outside of one run; only tests and fuzz targets call it.

use std::time::Duration;

use self::tape::Tape;
use self::world::World;
use crate::metrics::standing::Standing;

mod checks;

mod fleets;

mod output;

mod peers;

mod rows;

mod tape;

mod world;

#[cfg(test)]
mod tests;

/// Steps of one run. A longer tape is cut there: what matters has happened by then.
const STEPS_MAX: usize = 400;

/// Runs the tape. Panics when an invariant is broken.
pub fn fuzz(data: &[u8]) {
    let _ = run(data);
}

/// The same, and a digest of all that the machine did.
pub fn run(data: &[u8]) -> u64 {
    let mut tape = Tape::new(data);
    let fleet = tape.below(fleets::FLEETS);
    let finale = tape.below(3);
    let mut world = World::new(fleet);
    world.pump(&mut tape);
    for _ in 0..STEPS_MAX {
        if tape.is_over() || world.is_closed() {
            break;
        }
        step(&mut world, &mut tape);
        world.pump(&mut tape);
        world.check();
    }
    match finale {
        0 => settle(&mut world, &mut tape),
        1 => world.client_leaves(),
        // Everyone falls silent; only the clock goes on.
        _ => {}
    }
    world.pump(&mut tape);
    run_timers(&mut world, &mut tape);
    if !world.is_closed() {
        // A question to the control thread has no deadline of its own; losing the client ends it.
        world.client_leaves();
        world.pump(&mut tape);
        run_timers(&mut world, &mut tape);
    }
    world.check_rest();
    world.trace()
}

fn step(world: &mut World, tape: &mut Tape) {
    match tape.below(34) {
        0..=3 => {
            let request = peers::request(tape);
            world.upload(&request);
            if tape.below(4) < 3 {
                world.deliver(usize::MAX);
            }
        }
        4 => {
            let n = tape.below(48);
            let raw = tape.take(n).to_vec();
            world.upload(&raw);
        }
        5..=7 => {
            let n = tape.below(64);
            world.deliver(if n == 0 { usize::MAX } else { n });
        }
        8..=16 => {
            let n = [usize::MAX, 1, 7, 40, 300, usize::MAX, 12, 100][tape.below(8)];
            let slot = slot(world, tape);
            world.leg_step(slot, n);
        }
        17 => {
            let n = tape.below(48);
            let raw = tape.take(n).to_vec();
            let slot = slot(world, tape);
            world.leg_raw(slot, &raw);
        }
        18 => {
            let slot = slot(world, tape);
            world.leg_eof(slot);
        }
        19 => {
            let slot = slot(world, tape);
            world.leg_breaks(slot);
        }
        20..=22 => world.client_takes(usize::MAX),
        23 => world.client_takes(1 + tape.below(256)),
        24 => {
            world.run_to_deadline();
        }
        25 => world.advance(Duration::from_millis(1 + tape.below(250) as u64)),
        26 => world.advance(Duration::from_millis(100 * (1 + tape.below(250) as u64))),
        27 if tape.below(8) == 7 => world.client_leaves(),
        28 => world.flip_engine(tape.below(4), tape.below(2) == 1),
        29 => world.hold_permits(tape.below(4)),
        30 => {
            let to = [
                Standing::Serving,
                Standing::Standby,
                Standing::Serving,
                Standing::Draining,
            ][tape.below(4)];
            world.stand(to);
        }
        31 => {
            world.control_answers();
            world.look_around();
        }
        32 if tape.below(8) == 7 => world.close_when_idle(),
        // A good turn for everyone.
        _ => {
            world.deliver(usize::MAX);
            world.pump(tape);
            all_legs_step(world, tape);
            world.client_takes(usize::MAX);
        }
    }
}

/// The leg that something happens to.
fn slot(world: &World, tape: &mut Tape) -> usize {
    match world.legs[1] {
        Some(_) => tape.below(2),
        None => 0,
    }
}

fn all_legs_step(world: &mut World, tape: &mut Tape) {
    for slot in 0..world.legs.len() {
        world.leg_step(slot, usize::MAX);
        world.pump(tape);
    }
}

/// All do what they should until nothing more happens: what was asked is then answered, whole.
fn settle(world: &mut World, tape: &mut Tape) {
    for _ in 0..2_000 {
        let before = world.trace();
        world.deliver(usize::MAX);
        world.pump(tape);
        all_legs_step(world, tape);
        world.control_answers();
        world.client_takes(usize::MAX);
        world.pump(tape);
        world.check();
        if world.trace() != before {
            continue;
        }
        if !world.is_busy() {
            return;
        }
        world.run_to_deadline();
        world.pump(tape);
        world.check();
    }
    panic!("it never comes to rest");
}

/// Lets the clock run until nothing is due any more.
fn run_timers(world: &mut World, tape: &mut Tape) {
    for _ in 0..200 {
        if world.is_closed() || !world.run_to_deadline() {
            return;
        }
        world.pump(tape);
        world.check();
    }
    panic!("deadlines go on for ever");
}
