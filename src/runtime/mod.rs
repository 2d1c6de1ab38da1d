//! Sockets, threads and the OS clock of the data plane: the only rooms of a shard that touch the kernel.
//! Owns the runtime behind a narrow trait ([`io`]), how shards start ([`boot`]), and what crosses between
//! threads ([`mail`]). May use everything above the line; never parses, decides policy or picks a status.

pub mod io;

pub mod socket;

pub mod monoio;

#[cfg(feature = "rt-glommio")]
pub mod glommio;

pub mod topology;

pub mod settle;

pub mod boot;

pub mod bounds;

pub mod clock;

pub mod mail;

pub mod journal;

mod alarms;
#[cfg(debug_assertions)]
mod planted;
pub mod pool;
mod read_buffer;

pub mod cell;

pub mod letters;

pub mod line;

pub mod tls;

mod leg;

pub mod drive;

pub mod serve;

#[cfg(test)]
pub mod testing;
