//! The bytes of answers, as vLLM 0.32.0 writes them (heads as uvicorn does). Pure.
//!
//! A stream's events differ in number, token id and time only, at fixed places: the bytes of one write are made once for each request
//! and patched from then on. The first event (which shows the prompt's ids) and the last (which has a reason) are made by themselves.

use super::ask::Ask;
use super::stamp::{self, Stamp};

/// The date of all answers; nobody reads it.
const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\n";

const STREAM: &[u8] =
    b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";

const FINGERPRINT: &str = "vllm-0.32.0-43e6ef6b";

/// Token ids have five digits.
const ID_BASE: u64 = 10_000;

/// One answer's events.
#[derive(Debug, Default)]
pub struct Stream {
    /// Events that were written.
    pub made: u64,
    tokens: u64,
    tag: u64,
    ids: bool,
    usage: bool,
    prompt_tokens: u64,
    prompt_ids: Vec<u8>,
    /// From `data: ` to before the text of a token.
    before: Vec<u8>,
    /// What the buffer of the writer holds: so many events like those that come.
    ready: u64,
    /// Of one such event: its bytes, and where text and id lie in it.
    event_bytes: usize,
    text_at: usize,
    id_at: usize,
    scratch: Vec<u8>,
}

impl Stream {
    pub fn begin(&mut self, ask: &Ask, prompt_ids: Option<&[u8]>, model: &str, number: u64) {
        (self.made, self.ready) = (0, 0);
        (self.tokens, self.tag, self.ids) = (ask.tokens, ask.tag, ask.ids);
        (self.usage, self.prompt_tokens) = (ask.usage, ask.prompt_tokens);
        self.prompt_ids.clear();
        self.prompt_ids
            .extend_from_slice(prompt_ids.unwrap_or(b"null"));
        self.before.clear();
        opening(number, model, &mut self.before);
    }

    pub fn head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(HEAD);
        out.extend_from_slice(STREAM);
    }

    /// The next `count` events into `out`, which holds what the last call left there.
    pub fn write(&mut self, count: u64, now_ns: u64, out: &mut Vec<u8>) {
        let is_plain = self.made > 0 && self.made + count < self.tokens;
        if !is_plain || self.ready != count {
            out.clear();
            for _ in 0..count {
                self.event(now_ns, out);
            }
            self.ready = if is_plain { count } else { 0 };
            return;
        }
        for index in 0..count {
            let at = index as usize * self.event_bytes;
            stamp::patch(out, at + self.text_at, self.made, now_ns);
            if self.ids {
                decimal(&mut out[at + self.id_at..][..5], ID_BASE + self.made);
            }
            self.made += 1;
        }
    }

    /// One event as a chunk.
    fn event(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        let (is_first, is_last) = (self.made == 0, self.made + 1 == self.tokens);
        let mut event = std::mem::take(&mut self.scratch);
        event.clear();
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(&self.before);
        event.extend_from_slice(b"\"choices\":[{\"index\":0,\"text\":\"");
        let text_at = event.len();
        stamp::put(
            Stamp {
                number: self.made,
                tag: self.tag,
                written_ns: now_ns,
            },
            &mut event,
        );
        event.extend_from_slice(b"\",\"logprobs\":null,\"finish_reason\":");
        event.extend_from_slice(if is_last { b"\"length\"" } else { b"null" });
        event.extend_from_slice(b",\"stop_reason\":null,\"prompt_token_ids\":");
        event.extend_from_slice(if is_first { &self.prompt_ids } else { b"null" });
        event.extend_from_slice(b",\"token_ids\":");
        let id_at = event.len() + 1;
        if self.ids {
            event.extend_from_slice(b"[00000]");
            decimal(&mut event[id_at..][..5], ID_BASE + self.made);
        } else {
            event.extend_from_slice(b"null");
        }
        event.extend_from_slice(b"}]}\n\n");
        let from = out.len();
        chunk(&event, out);
        // The size line is as long as it is; what is before the event counts.
        let size_line = out.len() - from - event.len() - 2;
        self.event_bytes = out.len() - from;
        (self.text_at, self.id_at) = (size_line + text_at, size_line + id_at);
        self.scratch = event;
        self.made += 1;
    }

    /// What follows the last token, but the last chunk.
    pub fn done(&mut self, out: &mut Vec<u8>) {
        if self.usage {
            let mut event = b"data: ".to_vec();
            event.extend_from_slice(&self.before);
            let (prompt, tokens) = (self.prompt_tokens, self.tokens);
            let rest = format!(
                r#""choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":0}}}},"system_fingerprint":"{FINGERPRINT}"}}"#,
                prompt + tokens
            );
            event.extend_from_slice(rest.as_bytes());
            event.extend_from_slice(b"\n\n");
            chunk(&event, out);
        }
        chunk(b"data: [DONE]\n\n", out);
    }
}

/// The first leg of two: what NIXL hands over.
pub fn prefill(ask: &Ask, model: &str, number: u64, out: &mut Vec<u8>) {
    let blocks: Vec<String> = (1..=ask.prompt_tokens.div_ceil(16))
        .map(|block| block.to_string())
        .collect();
    let prompt = ask.prompt_tokens;
    let handoff = format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{}]],"remote_engine_id":"bb142f7c-3622-4392-8acf-8fd7537d1e8b","remote_request_id":"cmpl-{number:016x}-0-a4a93ed4","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{prompt},"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}}"#,
        blocks.join(","),
    );
    let mut one = ask.clone();
    one.tokens = 1;
    json(&one, b"null", model, number, &handoff, out);
}

/// An answer in one.
pub fn whole(ask: &Ask, body: &[u8], model: &str, number: u64, out: &mut Vec<u8>) {
    let prompt_ids = ask.prompt_ids(body).unwrap_or(b"null");
    json(ask, prompt_ids, model, number, "null", out);
}

fn json(ask: &Ask, prompt_ids: &[u8], model: &str, number: u64, handoff: &str, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(1_024 + ask.tokens as usize * stamp::TEXT_BYTES);
    opening(number, model, &mut body);
    body.extend_from_slice(b"\"choices\":[{\"index\":0,\"text\":\"");
    let written_ns = stamp::now_ns();
    for number in 0..ask.tokens {
        let tag = ask.tag;
        let stamp = Stamp {
            number,
            tag,
            written_ns,
        };
        stamp::put(stamp, &mut body);
    }
    body.extend_from_slice(
        b"\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":",
    );
    if ask.ids {
        let ids: Vec<String> = (0..ask.tokens)
            .map(|number| (ID_BASE + number).to_string())
            .collect();
        body.extend_from_slice(format!("[{}]", ids.join(",")).as_bytes());
    } else {
        body.extend_from_slice(b"null");
    }
    body.extend_from_slice(b",\"prompt_logprobs\":null,\"prompt_token_ids\":");
    body.extend_from_slice(prompt_ids);
    let (prompt, tokens) = (ask.prompt_tokens, ask.tokens);
    let rest = format!(
        r#","routed_experts":null}}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null}},"completion_tokens_details":null}},"kv_transfer_params":{handoff},"ec_transfer_params":null,"metrics":null}}"#,
        prompt + tokens,
    );
    body.extend_from_slice(rest.as_bytes());
    sized(HEAD, &body, out);
}

/// What a router asks an engine about itself.
pub fn probe(path: &[u8], model: &str, out: &mut Vec<u8>) {
    let body = match path {
        b"/health" | b"/health_generate" | b"/ping" => String::new(),
        b"/v1/models" => format!(
            r#"{{"object":"list","data":[{{"id":"{model}","object":"model","created":1795995163,"owned_by":"vllm","root":"{model}","parent":null,"max_model_len":8192,"permission":[]}}]}}"#
        ),
        b"/version" => r#"{"version":"0.32.0"}"#.to_owned(),
        b"/server_info" | b"/get_server_info" | b"/model_info" | b"/get_model_info" => format!(
            r#"{{"model_path":"{model}","served_model_name":"{model}","is_generation":true,"max_model_len":8192,"dp_size":1,"version":"0.32.0"}}"#
        ),
        _ => return sized(
            b"HTTP/1.1 404 Not Found\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\n",
            br#"{"detail":"Not Found"}"#,
            out,
        ),
    };
    sized(HEAD, body.as_bytes(), out);
}

/// A prompt without a tag.
pub fn refuse(out: &mut Vec<u8>) {
    let body = br#"{"error":{"message":"the prompt must begin with a number","type":"BadRequestError","param":null,"code":400}}"#;
    sized(
        b"HTTP/1.1 400 Bad Request\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\n",
        body,
        out,
    );
}

/// How every JSON answer and every event begins, up to its choices.
fn opening(number: u64, model: &str, out: &mut Vec<u8>) {
    let text = format!(
        r#"{{"id":"cmpl-{number:016x}","object":"text_completion","created":1795992886,"model":"{model}","#
    );
    out.extend_from_slice(text.as_bytes());
}

fn sized(head: &[u8], body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(head);
    let fields = format!(
        "content-length: {}\r\ncontent-type: application/json\r\nvary: Origin\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(fields.as_bytes());
    out.extend_from_slice(body);
}

fn chunk(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn decimal(out: &mut [u8], value: u64) {
    let mut left = value;
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
}
