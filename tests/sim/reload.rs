//! Reloads of the fleet file, as the control thread does them: an engine is taken out of the file while its legs run, and comes back later,
//! to its own place while something of it is left there, as a new one once nothing is. Each shard takes the fleet over when the seed
//! lets it, one that stands still much later than the others.
//!
//! Checked on the way: a shard places legs at engines of its own fleet only, so at none that all have let go; what is counted of an
//! engine that leaves and comes back is what runs there (`checks.rs`, after every step).

use std::sync::Arc;
use std::time::Duration;

use narwhal::base::units::EngineId;
use narwhal::config::Snapshot;
use narwhal::config::reload::{Change, follow};
use narwhal::config::topology::EngineView;
use narwhal::path::peek::View;
use narwhal::shard::next::Next;
use narwhal::shard::waits::Awaited;

use crate::conn::{Letter, NOBODY};
use crate::control::placed;
use crate::plan::pick;
use crate::queue::check_gates;
use crate::world::{Event, World, engine_id};

/// What the fleet file is and was.
pub struct Reloads {
    /// As control has it.
    current: Arc<Snapshot>,
    /// As each shard has it.
    fleets: Vec<Arc<Snapshot>>,
    /// The engine that is not in the file. One at a time, so that whoever comes gets the place that has its number.
    gone: Option<usize>,
    /// What the shards have not all taken over yet.
    coming: Option<Coming>,
    /// Engines that came back to what they had left.
    pub returned: Vec<bool>,
}

struct Coming {
    change: Change,
    snapshot: Arc<Snapshot>,
    next: Vec<Option<Next>>,
}

impl Reloads {
    pub fn new(snapshot: &Arc<Snapshot>, shards: usize) -> Reloads {
        Reloads {
            current: snapshot.clone(),
            fleets: vec![snapshot.clone(); shards],
            gone: None,
            coming: None,
            returned: vec![false; snapshot.engines.len()],
        }
    }
}

impl World {
    pub fn reloads_begin(&mut self) {
        let span = self.plan.ends_after.as_nanos() as u64;
        for _ in 0..self.plan.reloads {
            let engine = self.chance.below(self.plan.engines.len() as u64) as usize;
            let at = self.now + Duration::from_nanos(self.chance.below(span));
            self.plan_event(at, Event::TakeOut(engine));
        }
    }

    /// The file without that engine.
    pub fn take_out(&mut self, engine: usize) {
        let alone = self.plan.engines.len() == 1;
        let held = self.shared.board.line(engine_id(engine)).is_held();
        let busy = self.reloads.coming.is_some() || self.reloads.gone.is_some();
        if alone || held || busy {
            return;
        }
        self.reloads.gone = Some(engine);
        self.reload();
        let ms = pick(&mut self.chance, &[0, 20, 300, 3_000]);
        let at = self.now + Duration::from_millis(ms);
        self.plan_event(at, Event::PutBack);
    }

    /// The file with all engines.
    pub fn put_back(&mut self) {
        if self.reloads.coming.is_some() {
            let soon = self.now + Duration::from_millis(5);
            return self.plan_event(soon, Event::PutBack);
        }
        self.reloads.gone = None;
        self.reload();
    }

    fn reload(&mut self) {
        let mut fleet = self.plan.fleet.clone();
        if let Some(gone) = self.reloads.gone {
            fleet.engines.remove(gone);
        }
        let profiles = self.plan.profiles.clone();
        let is_free = |engine| self.is_done_with(engine);
        let change = follow(&self.reloads.current, fleet, profiles, is_free);
        let change = change.expect("the same fleet, and room for it");
        let snapshot = Arc::new(change.snapshot.clone());
        let Change {
            added,
            returned,
            removed,
            ..
        } = &change;
        self.trace
            .say(|| format!("added {added:?}, returned {returned:?}, removed {removed:?}"));
        self.shared.grow(snapshot.engines.len());
        let next = self.shards.iter().map(|_| Some(Next::new(&snapshot)));
        let next = next.collect();
        // Nothing fails from here on.
        let mut granted = Vec::new();
        self.shared.follow(&snapshot, &change.added, &mut granted);
        for engine in change.come() {
            self.shared.board.line(engine).set_away(false);
        }
        for engine in &change.returned {
            self.reloads.returned[engine.index()] = true;
        }
        self.cover.added += change.added.len() as u64;
        self.cover.returned += change.returned.len() as u64;
        self.tell_granted(granted);
        check_gates(self);
        for shard in 0..self.shards.len() {
            let delay = Duration::from_micros(pick(&mut self.chance, &[0, 20, 5_000, 40_000]));
            self.plan_event(self.now + delay, Event::Commit(shard));
        }
        self.reloads.coming = Some(Coming {
            change,
            snapshot,
            next,
        });
    }

    /// Nothing refers to the place of an engine that left.
    fn is_done_with(&self, engine: EngineId) -> bool {
        let held = self.shards.iter().map(|sim| sim.held[engine.index()]);
        let legs = self.conns.iter().flat_map(|conn| &conn.legs);
        let waits = legs.filter(|leg| leg.engine == Some(engine)).count();
        self.shared.is_at_rest(engine) && held.sum::<usize>() + waits == 0
    }

    /// As the shard knows it.
    pub fn is_in_fleet(&self, shard: usize, engine: EngineId) -> bool {
        self.reloads.fleets[shard].engines[engine.index()].is_here()
    }

    /// A shard reads its letter.
    pub fn commit(&mut self, shard: usize) {
        let stalled = self.shards[shard].stalled_until;
        if stalled > self.now {
            return self.plan_event(stalled, Event::Commit(shard));
        }
        let coming = self.reloads.coming.as_mut().expect("a letter each");
        let next = coming.next[shard].take().expect("one letter a shard");
        self.shards[shard].shard.commit(next);
        let snapshot = coming.snapshot.clone();
        let all = coming.next.iter().all(Option::is_none);
        for engine in snapshot.engines.iter().filter(|e| !e.is_here()) {
            for (link, _) in std::mem::take(&mut self.shards[shard].pool[engine.id.index()]) {
                self.close_leg_socket(link);
            }
        }
        self.reloads.fleets[shard] = snapshot;
        if all {
            self.all_have_committed();
        }
    }

    fn all_have_committed(&mut self) {
        let Some(Coming {
            change, snapshot, ..
        }) = self.reloads.coming.take()
        else {
            return;
        };
        let mut granted = Vec::new();
        for engine in &change.removed {
            self.shared.board.line(*engine).set_away(true);
            self.shared.open_phases(*engine, &mut granted);
        }
        self.tell_granted(granted);
        check_gates(self);
        self.control_follows(&snapshot, |engine: &EngineView| {
            change.added.contains(&engine.id)
        });
        self.plan.snapshot = snapshot.clone();
        self.reloads.current = snapshot;
    }

    fn tell_granted(&mut self, granted: Vec<(usize, Awaited)>) {
        for (shard, line) in granted {
            let delay = Duration::from_micros(pick(&mut self.chance, &[0, 20, 5_000]));
            self.post(shard, self.now + delay, NOBODY, Letter::Granted(line));
        }
    }

    /// Where this step placed a leg.
    pub fn check_fleet(&self, shard: usize, before: &View, after: &View) {
        for engine in placed(before, after) {
            let stays = self.is_in_fleet(shard, engine);
            assert!(stays, "a leg goes to {engine:?}, which left");
        }
    }
}
