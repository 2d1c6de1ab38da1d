//! SIGHUP: what may change while the router runs is read again. Today that is the file of client keys.
//!
//! A file that is wrong changes nothing and is told in the log. Reading may wait for a disk, so it is done on a thread of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;

use crate::config::{ApiKeys, Errors};
use crate::shard::Shared;

/// Caught from here on; not caught, it would end the process. Within a tokio runtime.
pub fn catch() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Follows the signal for the life of the process. Signals that come during a reading are one.
pub async fn run(shared: Arc<Shared>, api_keys_file: Option<PathBuf>, mut caught: Signal) {
    while caught.recv().await.is_some() {
        let Some(file) = api_keys_file.clone() else {
            tracing::warn!("SIGHUP: only runtime.api_keys_file is read again, and it is not set");
            continue;
        };
        let shared = shared.clone();
        let read = spawn_blocking(move || {
            let read = api_keys(&shared, &file);
            (file, read)
        });
        match read.await {
            Ok((file, Ok(count))) => {
                tracing::info!("SIGHUP: {} read again: {count} client keys", file.display());
            }
            Ok((_, Err(why))) => tracing::error!("SIGHUP: client keys stay as they are: {why}"),
            Err(error) => tracing::error!("SIGHUP: client keys stay as they are: {error}"),
        }
    }
}

/// How many keys there are now.
fn api_keys(shared: &Shared, file: &Path) -> Result<usize, Errors> {
    let keys = ApiKeys::load(file)?;
    let count = keys.count();
    shared.replace_api_keys(keys);
    Ok(count)
}
