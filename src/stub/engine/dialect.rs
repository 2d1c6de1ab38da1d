//! Where the dialects part: one place that picks the bytes. Owns nothing.
//!
//! Invariant: every match here names all dialects.

use super::{Engine, Incoming, Job};
use crate::base::time::Instant;
use crate::base::units::Dialect;
use crate::stub::answer::Answer;
use crate::stub::ask::{Ask, Route};
use crate::stub::refusal::Refusal;
use crate::stub::stream::Shape;
use crate::stub::{openai, sglang, vllm};

/// How `dialect` says no.
pub(super) fn refused(dialect: Dialect, refusal: &Refusal) -> Answer {
    match dialect {
        Dialect::Vllm => refusal.answer(),
        Dialect::Sglang => sglang::refused(refusal),
        Dialect::Openai => openai::refused(refusal),
    }
}

/// vLLM and SGLang take `application/json` only, with or without parameters.
pub(super) fn is_json(content_type: Option<&[u8]>) -> bool {
    let media = content_type
        .unwrap_or(b"")
        .split(|b| *b == b';')
        .next()
        .unwrap_or(b"");
    media.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

impl Engine {
    pub(super) fn refused(&self, refusal: &Refusal) -> Answer {
        refused(self.setup.dialect, refusal)
    }

    pub(super) fn is_tokenize(&self, path: &[u8]) -> bool {
        match self.setup.dialect {
            Dialect::Vllm => path == b"/tokenize",
            Dialect::Sglang => path == b"/tokenize" || path == b"/v1/tokenize",
            Dialect::Openai => false,
        }
    }

    pub(super) fn tokenized(&self, ids: &[u32], strs: Option<&[String]>) -> Answer {
        match self.setup.dialect {
            Dialect::Vllm => vllm::pages::tokenized(ids, strs, self.setup.len_max),
            // The OpenAI dialect has no such route.
            Dialect::Sglang | Dialect::Openai => sglang::pages::tokenized(ids, self.setup.len_max),
        }
    }

    /// A path that is not there.
    pub(super) fn no_path(&self) -> Answer {
        match self.setup.dialect {
            Dialect::Vllm | Dialect::Sglang => Answer::detail(404, "Not Found", None),
            Dialect::Openai => openai::no_path(),
        }
    }

    /// A method that a path does not have.
    pub(super) fn no_method(&self, allow: &'static str) -> Answer {
        match self.setup.dialect {
            Dialect::Vllm | Dialect::Sglang => {
                Answer::detail(405, "Method Not Allowed", Some(allow))
            }
            Dialect::Openai => openai::no_method(allow),
        }
    }

    pub(super) fn no_utf8(&self) -> Answer {
        const WHY: &str = "There was an error parsing the body";
        match self.setup.dialect {
            Dialect::Vllm | Dialect::Sglang => Answer::detail(400, WHY, None),
            Dialect::Openai => openai::refused(&Refusal::bad(WHY, None)),
        }
    }

    pub(super) fn answer_id(&mut self, route: Route, incoming: &Incoming<'_>, ask: &Ask) -> String {
        let prefix = if route == Route::Chat {
            "chatcmpl"
        } else {
            "cmpl"
        };
        if self.setup.dialect == Dialect::Sglang {
            return self.rid(ask);
        }
        match (incoming.request_id, &ask.request_id) {
            (Some(id), _) => format!("{prefix}-{}", String::from_utf8_lossy(id)),
            (None, Some(id)) => format!("{prefix}-{id}"),
            (None, None) => format!("{prefix}-{:016x}", self.prng.u64()),
        }
    }

    /// The model as the answer names it: SGLang says what it was asked for, and checks no name.
    pub(super) fn answer_model(&self, ask: &mut Ask) -> String {
        match self.setup.dialect {
            Dialect::Vllm | Dialect::Openai => self.setup.model.clone(),
            Dialect::Sglang => ask.model.take().unwrap_or_else(|| "default".into()),
        }
    }

    /// The fixed parts of a stream.
    pub(super) fn shape(&self, now: Instant, job: &Job) -> Shape {
        let names = self.names(now, job);
        let (plan, ids) = (&job.plan, &job.prompt_ids[..]);
        match self.setup.dialect {
            Dialect::Vllm => vllm::shape(job.route, &names, plan, ids, job.extras),
            Dialect::Sglang => {
                sglang::shape(job.route, &names, plan, ids, job.reasoning, job.extras)
            }
            Dialect::Openai => openai::shape(job.route, &names, plan, job.extras),
        }
    }

    /// A whole answer; `parameters` are vLLM's.
    pub(super) fn whole(
        &self,
        now: Instant,
        job: &Job,
        parameters: Option<&vllm::Parameters<'_>>,
    ) -> Answer {
        let names = self.names(now, job);
        let (plan, ids) = (&job.plan, &job.prompt_ids[..]);
        match self.setup.dialect {
            Dialect::Vllm => vllm::whole(job.route, &names, plan, ids, parameters),
            Dialect::Sglang => sglang::whole(job.route, &names, plan, ids, job.reasoning),
            Dialect::Openai => openai::whole(job.route, &names, plan),
        }
    }

    fn names<'a>(&'a self, now: Instant, job: &'a Job) -> vllm::Names<'a> {
        vllm::Names {
            id: &job.id,
            model: &job.model,
            fingerprint: &self.fingerprint,
            created: self.unix_s(now),
        }
    }
}
