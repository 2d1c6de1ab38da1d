//! The bytes of requests.

use super::Args;

/// A completion: the client's own, or the only leg of an engine.
pub fn completion(args: &Args, tag: u64, out: &mut Vec<u8>) {
    let rest = format!(r#""max_tokens":{},"stream":{}"#, args.tokens, !args.whole);
    post(args, tag, &rest, out);
}

/// The first of two legs, as a router sends it to vLLM.
pub fn prefill(args: &Args, tag: u64, out: &mut Vec<u8>) {
    let rest = r#""max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true}"#;
    post(args, tag, rest, out);
}

/// The second of two legs.
pub fn decode(args: &Args, tag: u64, handoff: &str, out: &mut Vec<u8>) {
    let rest = format!(
        r#""max_tokens":{},"stream":{},"return_token_ids":true,"stream_interval":1,"kv_transfer_params":{handoff}"#,
        args.tokens, !args.whole,
    );
    post(args, tag, &rest, out);
}

fn post(args: &Args, tag: u64, rest: &str, out: &mut Vec<u8>) {
    out.clear();
    let (open, separator, close) = if args.text {
        ("\"", " ", "\"")
    } else {
        ("[", ",", "]")
    };
    let mut body = format!(r#"{{"model":"{}","prompt":{open}{tag}"#, args.model);
    for id in 1..args.prompt_tokens {
        body.push_str(separator);
        body.push_str(&(1_000 + id % 9_000).to_string());
    }
    body.push_str(close);
    body.push(',');
    body.push_str(rest);
    body.push('}');
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        args.target,
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}
