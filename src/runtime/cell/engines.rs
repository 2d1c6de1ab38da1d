//! Connections to engines, as legs of a shard get them and give them back.

use super::super::io::Rt;
use super::super::line::{Dial, Line};
use super::ShardCell;
use super::held::Held;
use crate::base::units::EngineId;
use crate::config::topology::EngineView;

impl<R: Rt> ShardCell<R> {
    /// How to reach `engine` now; `None` while its name is not known, or when it speaks a TLS that we do not.
    pub(in super::super) fn dial(&self, engine: EngineId) -> Option<Dial> {
        let shard = self.shard.borrow();
        let view = shard.snapshot.engine(engine)?;
        let tls = self.tls.borrow();
        let peer = tls.as_ref().and_then(|tls| tls.peer(engine));
        // In this order: a list may then be newer than its version, never older.
        let version = shard.shared.addresses.version();
        let addresses = shard.shared.addresses.of(engine);
        let usable = !addresses.is_empty() && view.tls == peer.is_some();
        usable.then_some(Dial {
            addresses,
            version,
            bound: shard.snapshot.fleet.engine.connect_timeout,
            tls: peer,
        })
    }

    pub fn pool_take(&self, engine: EngineId) -> Option<Line<R>> {
        self.follow_addresses();
        self.pool.borrow_mut().take(engine, self.now())
    }

    /// Connections to each engine that legs hold, and the legs that wait for one.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Keeps a connection, unless the engine has moved since, or left.
    pub fn pool_put(&self, engine: EngineId, mut line: Line<R>) {
        let shard = self.shard.borrow();
        if !shard
            .snapshot
            .engine(engine)
            .is_some_and(EngineView::is_here)
        {
            return;
        }
        let addresses = &shard.shared.addresses;
        let version = addresses.version();
        if line.known == version || addresses.holds(engine, line.at) {
            line.known = version;
            self.pool.borrow_mut().put(engine, line, self.now());
        }
    }

    /// Closes idle connections to addresses that no longer are their engine's.
    pub(super) fn follow_addresses(&self) {
        let shard = self.shard.borrow();
        let addresses = &shard.shared.addresses;
        let version = addresses.version();
        if self.followed.replace(version) != version {
            let mut pool = self.pool.borrow_mut();
            pool.retain(|engine, line| addresses.holds(engine, line.at));
        }
    }
}
