//! The shards' way to the control thread, as the runtime room wants it: requests in, answers back by mail, notes to the log.

use std::sync::Arc;

use super::{Ask, Asker, Reply};
use crate::config::topology::Snapshot;
use crate::runtime::cell::{ControlPort, Mail};
use crate::runtime::mail::Mailbox;
use crate::shard::{ControlRequest, Note};

/// One for all shards.
pub struct Port {
    asker: Asker,
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    snapshot: Arc<Snapshot>,
}

impl Port {
    pub fn new(asker: Asker, mail: Arc<[Arc<Mailbox<Mail>>]>, snapshot: Arc<Snapshot>) -> Self {
        Port {
            asker,
            mail,
            snapshot,
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

    fn note(&self, note: Note) {
        let iid = |engine| {
            let engine = self.snapshot.engine(engine);
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
