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
        match note {
            Note::TokenizeMissing(engine) => {
                let iid = self
                    .snapshot
                    .engine(engine)
                    .map_or("?", |engine| engine.iid.as_str());
                tracing::warn!("engine {iid} has no /tokenize: prompt sizes are estimated");
            }
        }
    }
}
