//! A new connection finds its shard: it stays with the one that accepted it, or goes through the mailbox to one that has fewer.
//!
//! Nothing has been read from it and no operation is in flight on it. Which shard it is was settled by [`Connections::arrive`], which has
//! counted it there. Invariant: whoever accepted a connection hands it over or serves it; every mailbox is read until the process ends, so
//! one that was handed over is served too, closing shards included.
//!
//! [`Connections::arrive`]: crate::shard::connections::Connections::arrive

use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use super::{Mail, ShardCell};
use crate::metrics::ledger::Cell as LedgerCell;
use crate::runtime::drive;
use crate::runtime::io::Rt;

/// A shard with so many messages waiting is handed no connection: a quarter of its mailbox as `serve` makes it.
const HANDOVERS_MAX: usize = 256;

/// Both directions of a connection.
type Halves<R> = (<R as Rt>::Reader, <R as Rt>::Writer);

impl<R: Rt> ShardCell<R> {
    /// A new connection, from which nothing has been read, begins here or on a shard that has fewer.
    pub(super) fn admit(self: &Rc<Self>, reader: R::Reader, writer: R::Writer, peer: SocketAddr) {
        let to = self.shard.borrow().shared.connections.arrive(self.own);
        if to == self.own {
            return R::spawn(drive::connection(self.clone(), reader, writer, peer));
        }
        let kept = self.hand_over(to, reader, writer, peer);
        let shard = self.shard.borrow();
        let cell = match kept {
            Ok(()) => LedgerCell::ConnectionsMoved,
            Err(_) => LedgerCell::ConnectionsKept,
        };
        shard.ledger.update(|tx| tx.add(cell, 1));
        if let Err(halves) = kept {
            shard.shared.connections.stay(self.own, to);
            if let Some((reader, writer)) = halves {
                R::spawn(drive::connection(self.clone(), reader, writer, peer));
            } else {
                shard.shared.connections.leave(self.own);
            }
        }
    }

    /// Gives the halves back when there is no room to hand them over; `None` when they cannot even be taken back.
    fn hand_over(
        &self,
        to: usize,
        reader: R::Reader,
        writer: R::Writer,
        peer: SocketAddr,
    ) -> Result<(), Option<Halves<R>>> {
        // What is not told twice, such as an answer of the control thread, keeps its room.
        if self.mail[to].len() >= HANDOVERS_MAX {
            return Err(Some((reader, writer)));
        }
        let stream = R::release(reader, writer).map_err(Some)?;
        match self.mail[to].send(Mail::Connection { stream, peer }) {
            Err(Mail::Connection { stream, .. }) => Err(R::adopt(stream).ok()),
            _ => Ok(()),
        }
    }

    /// Another shard has handed this one a connection. Should this one be closing, it treats it as one it had itself accepted just before.
    pub(super) fn take_over(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        match R::adopt(stream) {
            Ok((reader, writer)) => {
                R::spawn(drive::connection(self.clone(), reader, writer, peer));
            }
            // The runtime cannot watch one more; to `accept` the same would have happened.
            Err(_) => self.shard.borrow().shared.connections.leave(self.own),
        }
    }
}

#[cfg(test)]
mod tests;
