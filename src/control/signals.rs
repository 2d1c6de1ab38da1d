//! SIGTERM and SIGINT: the first begins the drain (the gate closes at once, so `/ready` says 503 before anything else
//! happens), the second ends at once. What a drain or an end means for sockets is the caller's, by [`Notice`].

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Now;
use crate::config::checked::Fleet;
use crate::metrics::standing::{Gate, Standing};

/// What the caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The gate is closed: finish what is in flight.
    Drain,
    /// Leave now.
    End,
}

/// Both signals, caught from here on.
pub struct Caught {
    term: Signal,
    int: Signal,
}

impl Caught {
    /// Within a tokio runtime.
    pub fn new() -> io::Result<Caught> {
        Ok(Caught {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// The next of either.
    pub async fn next(&mut self) -> Option<()> {
        tokio::select! {
            got = self.term.recv() => got,
            got = self.int.recv() => got,
        }
    }
}

/// Follows the signals for the life of the process.
pub async fn run(now: Now, mut caught: Caught, mut tell: impl FnMut(Notice, &Fleet)) {
    while caught.next().await.is_some() {
        let shared = now.borrow().clone();
        let notice = on_signal(&shared.state.standing);
        tell(notice, &shared.snapshot.fleet);
    }
}

/// One signal came. A router that drains already (by a signal or otherwise) ends.
pub fn on_signal(gate: &Gate) -> Notice {
    if gate.set(Standing::Draining) {
        Notice::Drain
    } else {
        Notice::End
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-CTL-7
    #[test]
    fn the_first_drains_and_the_next_ones_end() {
        let gate = Gate::new();
        assert_eq!(on_signal(&gate), Notice::Drain);
        assert_eq!(gate.standing(), Standing::Draining);
        assert_eq!(on_signal(&gate), Notice::End);
        assert_eq!(on_signal(&gate), Notice::End);
    }

    #[test]
    fn any_other_standing_still_drains_first() {
        for standing in Standing::ALL.iter().filter(|s| **s != Standing::Draining) {
            let gate = Gate::new();
            gate.set(*standing);
            assert_eq!(on_signal(&gate), Notice::Drain, "{standing:?}");
        }
    }
}
