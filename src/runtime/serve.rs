//! A shard on the runtime that its driver belongs to: the one place where a driver becomes a type.
//!
//! Owns nothing.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use super::boot::Driver;
use super::cell::{self, ControlPort, Mail};
#[cfg(feature = "rt-glommio")]
use super::glommio::Glommio;
use super::mail::Mailbox;
use super::monoio::Monoio;
use super::tls;
use crate::shard::Shard;

/// Runs `shard` for the life of the process, on a thread whose runtime `driver` is. As [`cell::run`].
pub async fn shard(
    driver: Driver,
    shard: Shard,
    tls: Option<tls::Client>,
    listeners: Vec<TcpListener>,
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    control: Arc<dyn ControlPort>,
) -> io::Result<()> {
    match driver {
        Driver::IoUring | Driver::Epoll => {
            cell::run::<Monoio>(shard, tls, listeners, mail, control).await
        }
        #[cfg(feature = "rt-glommio")]
        Driver::Glommio => cell::run::<Glommio>(shard, tls, listeners, mail, control).await,
    }
}
