//! A fault that a test asks of a shard. Only builds with debug assertions have it: a release binary knows neither the code nor the name.

use std::path::Path;
use std::sync::OnceLock;

/// Which shard is to panic once which file is there, as `SHARD:PATH`.
const ASKED_BY: &str = "NARWHAL_TEST_PANIC";

/// Panics on the shard that was named, when the file is there.
pub(super) fn panic_when_told(shard: usize) {
    static ASKED: OnceLock<Option<(usize, String)>> = OnceLock::new();
    let asked = ASKED.get_or_init(|| {
        let text = std::env::var(ASKED_BY).ok()?;
        let (shard, path) = text.split_once(':')?;
        Some((shard.parse().ok()?, path.to_owned()))
    });
    if let Some((named, path)) = asked
        && *named == shard
        && Path::new(path).exists()
    {
        panic!("a test asked shard {shard} for it");
    }
}
