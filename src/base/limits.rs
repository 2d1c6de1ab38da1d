//! Every hard bound that no file sets: value, unit, reason. Bounds a file sets live in `config`.

/// Nesting of JSON that we accept, levels. Deeper requests are refused; deeper engine events are malformed.
/// The value is the contract's; our cursor keeps one bit a level, so the stack is not used per level.
pub const JSON_DEPTH_MAX: usize = 128;

/// Occurrences, in one request, of the top-level members that the router reads or edits. There are about thirty such names, so
/// only a body that repeats them on purpose comes near; more is refused, and the spans of a request stay under 20 KiB.
pub const KNOWN_MEMBERS_MAX: usize = 256;
/// Longest name of a member that is looked for; an escaped one is decoded as far.
pub const MEMBER_NAME_BYTES_MAX: usize = 64;

/// Tokens that an engine may claim for one prompt. A guess, a thousand times today's longest contexts: an answer over it is no count.
pub const PROMPT_TOKENS_MAX: u64 = 1_000_000_000;

/// Data events held before the first token-bearing one. The 65th ends the request.
pub const HELD_EVENTS_MAX: usize = 64;

/// Bytes of an engine's response head, and its fields. Engines send under 1 KiB; uvicorn itself stops at 64 KiB.
pub const ENGINE_HEAD_BYTES_MAX: usize = 65_536;
pub const ENGINE_HEADERS_MAX: usize = 100;

/// Bytes of trailer fields after a chunked body, either side, before the peer is called hostile.
pub const TRAILER_BYTES_MAX: usize = 8_192;

/// Bytes of one chunk-size line with its extensions. RFC 9112 section 7.1.1 asks receivers to bound it.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;

/// Bytes of an engine's error message that reach a client.
pub const ENGINE_MESSAGE_BYTES_MAX: usize = 1_024;

/// Pipelined bytes that we read ahead. Past it, while an exchange runs, they are dropped and the connection closes after the
/// answer; otherwise the client socket is not read.
pub const PIPELINE_BYTES_MAX: usize = 65_536;

/// Bytes gathered for one client before its engine is no longer read. At about 200 bytes an event this is 160 events.
/// A guess between nginx's 8 KiB proxy buffers and its 64 KiB busy limit.
pub const CLIENT_BUFFER_BYTES: usize = 32_768;

/// Capacity that a returned buffer may keep; what a large answer grew goes back to the allocator.
pub const BUFFER_KEEP_BYTES: usize = 65_536;

/// Bytes of one engine read at most, and while reads bring little. One buffer per active leg, recycled per shard. An event of vLLM
/// has 200 to 300 bytes.
pub const LEG_READ_BYTES: usize = 32_768;
pub const LEG_READ_SMALL_BYTES: usize = 2_048;

/// Bytes of one client read: while an exchange runs and the client has nothing to say, between requests and in heads, and while a
/// body is coming. What is read into the first may be the start of the next request.
pub const CLIENT_WATCH_BYTES: usize = 512;
pub const CLIENT_READ_BYTES: usize = 4_096;
pub const CLIENT_BODY_READ_BYTES: usize = 65_536;

/// Bytes kept of an engine's refusal, to find its message in.
pub const ENGINE_REFUSAL_BYTES_MAX: usize = 65_536;

/// Bytes of a `/tokenize` answer for each byte of the request: an id of up to seven digits and its comma.
pub const TOKENIZE_BYTES_PER_BYTE: usize = 8;

/// Milliseconds a leg may take to end its answer after `[DONE]`, to keep its socket. vLLM 0.32.0 sends the last
/// chunk in a segment of its own, about 0.1 ms later.
pub const DRAIN_MILLIS: u64 = 250;

/// Seconds and bytes: see R-HTTP-8. The bytes discarded on a kept connection are `max_request_bytes`.
pub const DISCARD_KEEP_SECONDS: u64 = 1;
pub const DISCARD_CLOSE_SECONDS: u64 = 2;

/// Idle engine sockets are dropped after this; vLLM's HTTP server closes them at 5.0 s (measured, 0.32.0).
pub const POOL_IDLE_SECONDS: u64 = 4;

/// Names of engines are looked up again after this.
pub const RESOLVE_SECONDS: u64 = 30;

/// Bytes of the body of a control request: some hundred engines by name.
pub const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;

/// Lookups at once, each on a thread of its own; the others wait. A guess: fleets have few names, and each is asked seldom.
pub const RESOLVERS_MAX: usize = 8;

/// Addresses kept of one name. A leg tries them in turn within its bound, so more would be of no use.
pub const ADDRESSES_MAX: usize = 16;

/// Bytes of one read from an https engine, and of what is encrypted before it is sent. A TLS record holds up to 16 KiB.
pub const TLS_READ_BYTES: usize = 16_384;
pub const TLS_WRITE_BYTES: usize = 65_536;

/// Bytes of an https connection between two requests: our read, a record within rustls (up to 18 KiB) and its state (9 KiB,
/// measured with 0.23.46).
pub const TLS_CONNECTION_BYTES: usize = 45_056;

const _: () = assert!(JSON_DEPTH_MAX <= 128);
const _: () = assert!(HELD_EVENTS_MAX >= 1);
