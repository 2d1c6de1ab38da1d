//! The shards' way to the control thread, as the runtime room wants it: requests in, answers back by mail, notes to the log.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Ask, Asker, Now, Reply};
use crate::runtime::cell::change::Told;
use crate::runtime::cell::{ControlPort, Mail};
use crate::runtime::mail::Mailbox;
use crate::shard::{ControlRequest, Note};

/// One for all shards.
pub struct Port {
    asker: Asker,
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    told: mpsc::Sender<Told>,
    now: Now,
}

impl Port {
    pub fn new(
        asker: Asker,
        mail: Arc<[Arc<Mailbox<Mail>>]>,
        told: mpsc::Sender<Told>,
        now: Now,
    ) -> Self {
        Port {
            asker,
            mail,
            told,
            now,
        }
    }
}

/// The words of a peer's certificate or alert, fit for a log.
pub(super) fn shown(words: &str) -> String {
    let some: String = words.chars().take(SHOWN_MAX).collect();
    some.escape_debug().to_string()
}

const SHOWN_MAX: usize = 300;

impl ControlPort for Port {
    fn ask(&self, shard: usize, request: ControlRequest) -> bool {
        let Some(mailbox) = self.mail.get(shard).cloned() else {
            return false;
        };
        let token = request.token;
        // A full mailbox drops the answer and counts it; the connection then ends at its own deadline.
        let reply = Reply::new(move |answer| drop(mailbox.send(Mail::Answer { token, answer })));
        self.asker.ask(Ask { request, reply });
        true
    }

    fn told(&self, told: Told) {
        // There is room for more letters than are ever under way.
        let _ = self.told.try_send(told);
    }

    fn note(&self, note: Note) {
        // Notes are few, and nobody holds this for longer than it takes to put another one there.
        let shared = self.now.borrow().clone();
        let iid = |engine| {
            let engine = shared.snapshot.engine(engine);
            engine.map_or("?", |engine| engine.iid.as_str())
        };
        match note {
            Note::TokenizeMissing(engine) => {
                let iid = iid(engine);
                tracing::warn!("engine {iid} has no /tokenize: prompt sizes are estimated");
            }
            Note::TlsFailed { engine, why } => {
                let iid = iid(engine);
                tracing::warn!("engine {iid}: no TLS with it: {}", shown(&why));
            }
        }
    }
}
