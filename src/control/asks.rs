//! What shards ask the control thread for clients of its routes, and how the answer finds its way back.
//! Invariant: each ask is answered once.

use tokio::sync::mpsc;

use super::admin;
use crate::metrics::standing::Answer;
use crate::shard::ControlRequest;

/// An admin request that came in on a data port, and the way back.
pub struct Ask {
    pub request: ControlRequest,
    pub reply: Reply,
}

/// Brings the answer back: called exactly once, on the control thread, with 503 when the ask is dropped unanswered.
pub struct Reply(Option<Box<dyn FnOnce(Answer) + Send>>);

impl Reply {
    pub fn new(send: impl FnOnce(Answer) + Send + 'static) -> Reply {
        Reply(Some(Box::new(send)))
    }

    pub(super) fn send(mut self, answer: Answer) {
        if let Some(send) = self.0.take() {
            send(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(send) = self.0.take() {
            send(admin::busy());
        }
    }
}

/// A shard's way to ask. Cheap to clone; never blocks.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Ask>);

impl Asker {
    pub(super) fn new(asks: mpsc::Sender<Ask>) -> Asker {
        Asker(asks)
    }

    /// When the control thread is behind or gone, the reply is called at once with 503.
    pub fn ask(&self, ask: Ask) {
        // Dropping a refused ask answers it.
        drop(self.0.try_send(ask));
    }
}
