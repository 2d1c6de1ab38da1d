//! What the control thread is told at its start, beside the fleet.

use std::net::SocketAddr;
use std::sync::Arc;

use super::reload::Again;
use super::resolve;
use super::signals;
use crate::config::checked::Fleet;
use crate::config::{AdminKey, Errors};

/// Hears of signals.
pub type OnNotice = dyn FnMut(signals::Notice, &Fleet) + Send;

/// What the caller decides; the rest is in the snapshot's fleet.
pub struct Settings {
    pub admin_listen: Option<SocketAddr>,
    pub admin_key: Option<AdminKey>,
    /// How the fleet file is read again on SIGHUP, and how shards hear of it; `None` where there is no file.
    pub again: Option<Again>,
    /// SIGTERM, SIGINT and SIGHUP are ours.
    pub signals: bool,
    pub names: resolve::Names,
    /// Of the chance in what engines are asked.
    pub seed: u64,
    /// How https engines are probed; without it they are not live.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Called on the control thread, with the fleet of then; must not block.
    pub on_notice: Box<OnNotice>,
}

impl Settings {
    /// As the fleet file says; reads the key file. The caller adds its `on_notice`, and `tls` when an engine is https.
    pub fn of(fleet: &Fleet) -> Result<Settings, Errors> {
        let runtime = &fleet.runtime;
        let key = runtime.admin_key_file.as_deref().map(AdminKey::load);
        Ok(Settings {
            admin_listen: runtime.admin_listen,
            admin_key: key.transpose()?,
            again: None,
            signals: true,
            names: resolve::Names::default(),
            seed: 0,
            tls: None,
            on_notice: Box::new(|_, _| ()),
        })
    }
}
