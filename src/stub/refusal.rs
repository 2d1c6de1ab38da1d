//! How a simulated engine says no: the error bodies of vLLM 0.32.0, worded as recorded. Pure.
//!
//! Invariant: `code` in the body = the status of the answer.

use crate::stub::answer::{Answer, JSON};

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub kind: &'static str,
    pub message: String,
    pub param: Option<String>,
}

impl Refusal {
    /// vLLM's own checks: 400 `BadRequestError`.
    pub fn bad(message: impl Into<String>, param: Option<&str>) -> Self {
        Refusal {
            status: 400,
            kind: "BadRequestError",
            message: message.into(),
            param: param.map(str::to_owned),
        }
    }

    /// As [`Refusal::bad`], with the tail that vLLM puts behind checks of one value.
    pub fn value(message: &str, param: &str, value: &str) -> Self {
        let text = format!("{message} (parameter={param}, value={value})");
        Refusal::bad(text, Some(param))
    }

    /// The schema's checks (pydantic): 400 `Bad Request`, with the place as `param`.
    pub fn schema(kind: &str, loc: &str, msg: &str, input: &str, more: &str) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}', 'input': '{input}'{more}}}"
        );
        Refusal {
            status: 400,
            kind: "Bad Request",
            message,
            param: Some(loc.to_owned()),
        }
    }

    pub fn media_type() -> Self {
        Refusal {
            status: 400,
            kind: "Bad Request",
            message:
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
                    .into(),
            param: None,
        }
    }

    pub fn unknown_model(asked: &str, served: &str) -> Self {
        Refusal {
            status: 404,
            kind: "NotFoundError",
            message: format!("The model `{asked}` does not exist. Valid aliases: {served}."),
            param: Some("model".into()),
        }
    }

    /// A KV transfer that failed; the engine lives.
    pub fn internal() -> Self {
        Refusal::server("Internal server error")
    }

    /// The engine core is dead.
    pub fn core_died() -> Self {
        Refusal::server(
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )
    }

    /// A request that failed for the reason given.
    pub fn failed(message: String) -> Self {
        Refusal {
            message,
            ..Refusal::internal()
        }
    }

    /// A server that was told to end takes nothing new.
    pub fn shutdown() -> Self {
        Refusal::server("cannot schedule new futures after shutdown")
    }

    /// Any status, with vLLM's type for it.
    pub fn of_status(status: u16, message: Option<&str>) -> Self {
        let kind = match status {
            400 | 413 | 422 => "BadRequestError",
            401 => "AuthenticationError",
            403 => "PermissionDeniedError",
            404 => "NotFoundError",
            408 => "RequestTimeoutError",
            429 => "RateLimitError",
            503 => "Service Unavailable",
            _ => "InternalServerError",
        };
        Refusal {
            status,
            kind,
            message: message.unwrap_or("Injected fault").into(),
            param: None,
        }
    }

    fn server(message: &str) -> Self {
        Refusal {
            status: 500,
            kind: "InternalServerError",
            message: message.into(),
            param: None,
        }
    }

    /// As a whole answer: compact JSON.
    pub fn answer(&self) -> Answer {
        let body = format!(
            r#"{{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}}"#,
            quoted(&self.message),
            self.kind,
            self.param_json(),
            self.status
        );
        Answer::new(self.status, JSON, body.into_bytes())
    }

    /// As an event inside a stream: with spaces after colons and commas, which nothing else there has.
    pub fn event(&self, out: &mut Vec<u8>) {
        let event = format!(
            "data: {{\"error\": {{\"message\": {}, \"type\": \"{}\", \"param\": {}, \"code\": {}}}}}\n\n",
            quoted(&self.message),
            self.kind,
            self.param_json(),
            self.status
        );
        out.extend_from_slice(event.as_bytes());
    }

    pub(super) fn param_json(&self) -> String {
        self.param.as_deref().map_or("null".into(), quoted)
    }
}

/// `text` as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
