//! The routes beside the completions: health, readiness and models are answered here, control routes by the control thread (`ask`), and the
//! rest with 404 or 405. Part of stage `parse`.

use super::accept::Connection;
use super::answer::{self, Refusal};
use crate::metrics::ledger::Cell;
use crate::metrics::standing;
use crate::shard::Shard;
use crate::wire::h1::head::Method;
use crate::wire::openai::Route;

/// What a path leads to.
pub(super) enum Target {
    Completion(Route),
    Health,
    Ready,
    Models,
    /// Rendered by the control thread.
    Control,
    Unknown,
}

impl Connection {
    pub(super) fn answer_simple(&mut self, shard: &mut Shard, target: Target, method: Method) {
        let get = matches!(method, Method::Get | Method::Head);
        let allow = match target {
            Target::Unknown => None,
            Target::Completion(_) => Some("POST"),
            _ => Some("GET"),
        };
        if method == Method::Options {
            let allow = match target {
                Target::Completion(_) => "POST, OPTIONS",
                Target::Unknown => "GET, HEAD, POST, OPTIONS",
                _ => "GET, HEAD, OPTIONS",
            };
            let fields: [(&str, &[u8]); 1] = [("allow", allow.as_bytes())];
            return answer::write_answer(&mut self.io, shard, 204, &fields, b"");
        }
        let answer = match target {
            Target::Health if get => standing::health(&shard.health()),
            Target::Ready if get => standing::ready(&shard.health()),
            Target::Models if get => {
                let fleet = &shard.snapshot.fleet;
                let aliases = fleet.model_aliases.iter().map(String::as_str);
                standing::models(std::iter::once(fleet.model.as_str()).chain(aliases))
            }
            Target::Unknown => {
                let refusal = Refusal::new(404, "invalid_request_error", "Not found");
                return answer::write_refusal(&mut self.io, shard, &refusal, None, None);
            }
            _ => {
                let refusal = Refusal::new(405, "invalid_request_error", "Method not allowed");
                return answer::write_refusal(&mut self.io, shard, &refusal, None, allow);
            }
        };
        answer::write_small(&mut self.io, shard, &answer);
    }

    /// To who asks for `/v1/*` with no key that opens it.
    pub(super) fn refuse_stranger(&mut self, shard: &mut Shard, target: Target, given: bool) {
        shard.count(Cell::Unauthorized);
        let message = match given {
            true => "Incorrect API key provided",
            false => "No API key provided: send it as `Authorization: Bearer KEY`",
        };
        let refusal = Refusal::new(401, "invalid_request_error", message).code("invalid_api_key");
        // No exchange begins, but whoever asks about the answer can name it.
        let id = matches!(target, Target::Completion(_)).then(|| shard.prng.uuid());
        answer::write_refusal(&mut self.io, shard, &refusal, id.as_ref(), None);
    }
}

/// Whether `path` is among those that clients need a key for.
pub(super) fn needs_key(path: &[u8]) -> bool {
    path.starts_with(b"/v1/")
}

impl Target {
    pub(super) fn of(path: &[u8]) -> Target {
        match path {
            b"/v1/completions" => Target::Completion(Route::Completions),
            b"/v1/chat/completions" => Target::Completion(Route::Chat),
            b"/health" => Target::Health,
            b"/ready" => Target::Ready,
            b"/v1/models" => Target::Models,
            b"/metrics" => Target::Control,
            _ if path.starts_with(b"/narwhal/") => Target::Control,
            _ => Target::Unknown,
        }
    }
}
