//! The leg to a plain OpenAI-compatible server: the client's request as it is, always streamed. No handoff, no token ids.
//!
//! What is edited: `stream`; the model's name; the fields that vLLM trusts, which no client may send through us; and, when the answer is
//! assembled here, `stream_options.include_usage`, since without ids nobody else can say what was used.

use crate::wire::openai::Request;
use crate::wire::splice::{Edit, splice};

use super::vllm::with_model;

/// Appends the leg's body.
pub fn decode_body(out: &mut Vec<u8>, body: &[u8], req: &Request, model: &str) {
    let mut edits = vec![
        ("stream", Edit::Set(b"true")),
        ("kv_transfer_params", Edit::Remove),
        ("ec_transfer_params", Edit::Remove),
    ];
    if !req.stream {
        edits.push(("stream_options", Edit::Set(b"{\"include_usage\":true}")));
    }
    edits.push(("model", Edit::Text(model)));
    splice(out, body, &req.layout, with_model(&edits, req));
}

#[doc(hidden)]
pub mod fuzzing {
    //! Bodies for fuzz targets.

    use super::*;
    use crate::wire::dialect::Dialect;
    use crate::wire::openai::{Route, Rules, check};
    use crate::wire::splice::fuzzing::{assert_edited, members};

    /// Every body that passes makes a leg that is the naive edit of it.
    pub fn legs(data: &[u8]) {
        for route in [Route::Completions, Route::Chat] {
            let rules = Rules {
                dialect: Dialect::Openai,
                model: "m",
                aliases: &["alias".to_owned()],
            };
            let Ok(req) = check(route, data, &rules) else {
                continue;
            };
            let given = members(data).expect("checked");
            let own: Vec<_> = given.iter().filter(|m| m.0 == "model").collect();
            let kept = own.len() == 1
                && serde_json::from_str::<String>(&own[0].1).is_ok_and(|model| model == "m");
            let mut edits = vec![
                ("stream", Some("true")),
                ("kv_transfer_params", None),
                ("ec_transfer_params", None),
            ];
            if !req.stream {
                edits.push(("stream_options", Some("{\"include_usage\":true}")));
            }
            edits.extend((!kept).then_some(("model", Some("\"m\""))));
            let mut out = Vec::new();
            decode_body(&mut out, data, &req, "m");
            assert_edited(data, &out, &edits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::dialect::Dialect;
    use crate::wire::openai::{Route, Rules, check};

    #[test]
    fn seeds_of_the_fuzz_body() {
        for seed in [
            "{}",
            r#"{"model":"m","prompt":"p","\u0073tream":true,"stream_options":null}"#,
            r#"{"model":"alias","messages":[],"stream":false,"kv_transfer\u005fparams":[1],"ec_transfer_params":{}}"#,
            "[",
        ] {
            fuzzing::legs(seed.as_bytes());
        }
    }

    // proves R-LEG-5
    #[test]
    fn usage_is_asked_for_only_where_it_is_assembled() {
        let rows = [
            (
                r#"{"model":"m","prompt":"p"}"#,
                r#"{"model":"m","prompt":"p","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"alias","prompt":"p","stream":true,"kv_transfer_params":{}}"#,
                r#"{"model":"m","prompt":"p","stream":true}"#,
            ),
            (
                r#"{"prompt":"p","stream":true,"stream_options":{"include_usage":false},"model":"m"}"#,
                r#"{"prompt":"p","stream":true,"stream_options":{"include_usage":false},"model":"m"}"#,
            ),
        ];
        let rules = Rules {
            dialect: Dialect::Openai,
            model: "m",
            aliases: &["alias".to_owned()],
        };
        for (body, want) in rows {
            let req = check(Route::Completions, body.as_bytes(), &rules).expect("a good body");
            let mut out = Vec::new();
            decode_body(&mut out, body.as_bytes(), &req, "m");
            assert_eq!(String::from_utf8_lossy(&out), want);
        }
    }
}
