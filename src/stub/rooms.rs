//! Rooms in which the two legs of a request meet, as SGLang's disaggregation over mooncake has them: both legs come at once,
//! each to its engine, and name one number.
//!
//! The prefill engine reads the prompt once the decode leg is there; the decode leg has its first token, and the prefill leg its
//! answer, when the prompt is read and the KV moved. A leg holds a [`Seat`]; letting go of it before the KV has moved fails the
//! other leg. A leg that waits is polled, and [`Seat::changed`] says when that is worth while again.
//!
//! Rooms are known within one world. Where that world has no engine of the other role, the partner is of another process and
//! cannot be seen: then no room is made and a leg is believed ([`Rooms::matched`]).
//!
//! Invariant: a room is known exactly as long as one of its seats lives, so rooms ≤ requests in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::base::time::Instant;
use crate::stub::handoff::EngineName;
use crate::stub::load::Load;
use crate::stub::profile::Profile;

/// How long a leg waits for the other: what SGLang allows in either role unless told otherwise.
pub const WAIT: Duration = Duration::from_secs(300);

/// All rooms of one world.
#[derive(Debug, Default)]
pub struct Rooms {
    live: Rc<RefCell<BTreeMap<u64, Rc<Room>>>>,
    /// Whether this world has engines of both roles, so that legs are matched.
    pub matched: bool,
    pub counts: Counts,
}

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Both legs came.
    pub met: u64,
    /// A leg came to a room where its place had been taken.
    pub taken: u64,
    /// Believed: the partner is of another process.
    pub unmatched: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Prefill,
    Decode,
}

/// What a leg brings along.
#[derive(Clone, Debug)]
pub struct Party {
    /// The request's name on its engine.
    pub rid: String,
    pub engine: EngineName,
    pub load: Rc<Load>,
    pub profile: Profile,
    pub prompt_tokens: u64,
}

/// One leg's place in a room.
#[derive(Debug)]
pub struct Seat {
    rooms: Rc<RefCell<BTreeMap<u64, Rc<Room>>>>,
    room: Rc<Room>,
    side: Side,
    rid: String,
    since: Instant,
    wait: Duration,
    seen: Cell<u64>,
    /// The KV has moved: what becomes of the other leg is no longer ours.
    settled: Cell<bool>,
}

/// How a leg stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing before this time, unless the room changes.
    Waits(Instant),
    /// The KV has moved, at this time.
    Ready(Instant),
    Failed(Fault),
}

/// Why legs did not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody came for so long.
    Alone(Duration),
    /// The other leg was let go of.
    Left,
    /// The other leg's engine died.
    Died,
    /// Another request sits there.
    Taken,
}

#[derive(Debug)]
struct Room {
    number: u64,
    /// Which legs came, gone ones included.
    came: [Cell<bool>; 2],
    parties: [RefCell<Option<Party>>; 2],
    state: Cell<State>,
    /// Counts changes of `state`.
    version: Cell<u64>,
    wakers: [RefCell<Option<Waker>>; 2],
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting,
    /// Both are there; the KV has moved at this time.
    Met(Instant),
    Failed(Fault),
}

impl Rooms {
    /// A leg enters room `number` and waits there for `wait` at most.
    pub fn enter(
        &mut self,
        now: Instant,
        number: u64,
        side: Side,
        party: Party,
        wait: Duration,
    ) -> Result<Seat, Fault> {
        let mut live = self.live.borrow_mut();
        let room = live
            .entry(number)
            .or_insert_with(|| Rc::new(Room::new(number)));
        if room.came[side as usize].replace(true) {
            self.counts.taken += 1;
            return Err(Fault::Taken);
        }
        let rid = party.rid.clone();
        *room.party(side).borrow_mut() = Some(party);
        if matches!(room.state.get(), State::Waiting)
            && let Some(moved) = room.read(now)
        {
            self.counts.met += 1;
            room.set(State::Met(moved));
        }
        Ok(Seat {
            rooms: self.live.clone(),
            room: room.clone(),
            side,
            rid,
            since: now,
            wait,
            seen: Cell::new(u64::MAX),
            settled: Cell::new(false),
        })
    }

    /// `engine` is gone: who waits for it is told.
    pub fn bury(&mut self, engine: &EngineName) {
        for room in self.live.borrow().values() {
            let of = |party: &RefCell<Option<Party>>| {
                party.borrow().as_ref().is_some_and(|p| p.engine == *engine)
            };
            if room.parties.iter().any(of) {
                room.set(State::Failed(Fault::Died));
            }
        }
    }

    /// How many rooms are in use.
    pub fn len(&self) -> usize {
        self.live.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Seat {
    pub fn number(&self) -> u64 {
        self.room.number
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn rid(&self) -> &str {
        &self.rid
    }

    /// How this leg stands at `now`.
    pub fn poll(&self, now: Instant) -> Standing {
        self.seen.set(self.room.version.get());
        let until = self.since + self.wait;
        match self.room.state.get() {
            // What has moved has moved, whatever comes later.
            State::Failed(fault) if !self.settled.get() => Standing::Failed(fault),
            State::Failed(_) => Standing::Ready(now),
            State::Waiting if until <= now => Standing::Failed(Fault::Alone(self.wait)),
            State::Waiting => Standing::Waits(until),
            State::Met(moved) if moved > now => Standing::Waits(moved),
            State::Met(moved) => {
                self.settled.set(true);
                Standing::Ready(moved)
            }
        }
    }

    /// Done when the room has changed since it was last polled.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|cx| {
            if self.seen.get() != self.room.version.get() {
                return Poll::Ready(());
            }
            let waker = Some(cx.waker().clone());
            self.room.wakers[self.side as usize].replace(waker);
            Poll::Pending
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let room = &self.room;
        room.party(self.side).replace(None);
        room.wakers[self.side as usize].replace(None);
        if !self.settled.get() && !matches!(room.state.get(), State::Failed(_)) {
            room.set(State::Failed(Fault::Left));
        }
        if room.parties.iter().all(|p| p.borrow().is_none()) {
            self.rooms.borrow_mut().remove(&room.number);
        }
    }
}

impl Room {
    fn new(number: u64) -> Self {
        Room {
            number,
            came: Default::default(),
            parties: Default::default(),
            state: Cell::new(State::Waiting),
            version: Cell::new(0),
            wakers: Default::default(),
        }
    }

    fn party(&self, side: Side) -> &RefCell<Option<Party>> {
        &self.parties[side as usize]
    }

    /// Has the prompt read, if both legs are there; when the KV will have moved.
    fn read(&self, now: Instant) -> Option<Instant> {
        let prefill = self.party(Side::Prefill).borrow();
        let decode = self.party(Side::Decode).borrow();
        let (prefill, _) = prefill.as_ref().zip(decode.as_ref())?;
        let profile = &prefill.profile;
        let read_at = prefill
            .load
            .read_prompt(now, profile, prefill.prompt_tokens);
        Some(read_at + profile.transfer())
    }

    fn set(&self, state: State) {
        self.state.set(state);
        self.version.set(self.version.get() + 1);
        for waker in &self.wakers {
            if let Some(waker) = waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::ZERO;
    const NAMES: [EngineName; 2] = [[b'p'; 36], [b'd'; 36]];

    fn ms(n: u64) -> Instant {
        T0 + Duration::from_millis(n)
    }

    fn party(side: Side) -> Party {
        Party {
            rid: "r".into(),
            engine: NAMES[side as usize],
            load: Rc::default(),
            profile: Profile {
                transfer_s: 0.004,
                ..Profile::flat(10.0, 1.0)
            },
            prompt_tokens: 5,
        }
    }

    fn enter(rooms: &mut Rooms, now: Instant, side: Side) -> Result<Seat, Fault> {
        rooms.enter(now, 7, side, party(side), WAIT)
    }

    #[test]
    fn legs_meet_in_either_order_and_the_prompt_is_read_then() {
        for (first, second) in [(Side::Prefill, Side::Decode), (Side::Decode, Side::Prefill)] {
            let mut rooms = Rooms::default();
            let a = enter(&mut rooms, ms(1), first).unwrap();
            assert_eq!(a.poll(ms(1)), Standing::Waits(ms(1) + WAIT));
            let b = enter(&mut rooms, ms(5), second).unwrap();
            // 10 ms to read, 4 ms to move.
            for seat in [&a, &b] {
                assert_eq!(seat.poll(ms(6)), Standing::Waits(ms(19)));
                assert_eq!(seat.poll(ms(25)), Standing::Ready(ms(19)));
            }
            assert_eq!(enter(&mut rooms, ms(25), first).unwrap_err(), Fault::Taken);
            drop(a);
            assert_eq!(b.poll(ms(26)), Standing::Ready(ms(19)), "settled");
            let again = enter(&mut rooms, ms(26), first).unwrap_err();
            assert_eq!((again, rooms.len()), (Fault::Taken, 1));
            drop(b);
            assert!(rooms.is_empty());
            assert_eq!((rooms.counts.met, rooms.counts.taken), (1, 2));
            enter(&mut rooms, ms(27), first).unwrap();
        }
    }

    #[test]
    fn a_leg_alone_fails_and_so_does_one_that_is_left() {
        type Act = fn(&mut Rooms, Seat);
        // name, what the other leg does, expected of this one
        let rows: [(&str, Act, Fault); 2] = [
            ("left", |_, seat| drop(seat), Fault::Left),
            (
                "died",
                |rooms, seat| {
                    rooms.bury(&NAMES[seat.side() as usize]);
                    drop(seat);
                },
                Fault::Died,
            ),
        ];
        for (name, act, fault) in rows {
            for (mine, other) in [(Side::Prefill, Side::Decode), (Side::Decode, Side::Prefill)] {
                let mut rooms = Rooms::default();
                let seat = enter(&mut rooms, T0, mine).unwrap();
                let partner = enter(&mut rooms, T0, other).unwrap();
                assert_eq!(seat.poll(T0), Standing::Waits(ms(14)));
                act(&mut rooms, partner);
                assert_eq!(
                    seat.poll(ms(20)),
                    Standing::Failed(fault),
                    "{name} {mine:?}"
                );
                drop(seat);
                assert!(rooms.is_empty(), "{name}");
            }
        }
        let mut rooms = Rooms::default();
        let seat = enter(&mut rooms, T0, Side::Decode).unwrap();
        assert_eq!(seat.poll(T0 + WAIT), Standing::Failed(Fault::Alone(WAIT)));
        drop(seat);
        assert!(rooms.is_empty());
    }

    #[test]
    fn a_change_wakes_who_waits() {
        let mut rooms = Rooms::default();
        let seat = enter(&mut rooms, T0, Side::Prefill).unwrap();
        let mut cx = std::task::Context::from_waker(Waker::noop());
        seat.poll(T0);
        let mut changed = Box::pin(seat.changed());
        assert!(changed.as_mut().poll(&mut cx).is_pending());
        let partner = enter(&mut rooms, T0, Side::Decode).unwrap();
        assert!(changed.as_mut().poll(&mut cx).is_ready());
        drop(changed);
        seat.poll(T0);
        let mut changed = Box::pin(seat.changed());
        assert!(changed.as_mut().poll(&mut cx).is_pending());
        drop(partner);
        assert!(changed.as_mut().poll(&mut cx).is_ready());
    }
}
