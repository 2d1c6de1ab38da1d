//! What the control thread is told at its start, beside the fleet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::resolve;
use super::signals;
use crate::config::checked::Fleet;
use crate::config::{AdminKey, Errors};

/// What the caller decides; the rest is in the snapshot's fleet.
pub struct Settings {
    pub admin_listen: Option<SocketAddr>,
    pub admin_key: Option<AdminKey>,
    /// What is read again on SIGHUP.
    pub api_keys_file: Option<PathBuf>,
    /// SIGTERM, SIGINT and SIGHUP are ours.
    pub signals: bool,
    pub names: resolve::Names,
    /// Of the chance in what engines are asked.
    pub seed: u64,
    /// How https engines are probed; without it they are not live.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Called on the control thread; must not block.
    pub on_notice: Box<dyn FnMut(signals::Notice) + Send>,
}

impl Settings {
    /// As the fleet file says; reads the key file. The caller adds its `on_notice`, and `tls` when an engine is https.
    pub fn of(fleet: &Fleet) -> Result<Settings, Errors> {
        let runtime = &fleet.runtime;
        let key = runtime.admin_key_file.as_deref().map(AdminKey::load);
        Ok(Settings {
            admin_listen: runtime.admin_listen,
            admin_key: key.transpose()?,
            api_keys_file: runtime.api_keys_file.clone(),
            signals: true,
            names: resolve::Names::default(),
            seed: 0,
            tls: None,
            on_notice: Box::new(|_| ()),
        })
    }
}
