//! The leading blocks of a prompt, as hashes by which two prompts are compared.
//!
//! What is hashed is a canonical byte string of what an engine's template would see, so that bodies that mean the same agree: strings
//! unescaped, white space between JSON tokens dropped, members in a fixed order whatever the client's, the last of several
//! counting, and `null` absent.
//!
//! ```text
//! seed     model · cache_salt · chat_template · chat_template_kwargs · which of the three below
//! messages tools · per message: role · text of its content · tool_calls
//! prompt   the string
//! ids      each as 4 bytes
//! ```
//!
//! Between the parts stand bytes that no UTF-8 holds. Of content parts the `text` counts, joined by a line feed as vLLM joins them
//! (`chat_utils.py`), so that a string and the same string in a part agree. A part that is no text (an image, audio, a file) ends
//! the string, as the tokens behind it depend on bytes that are not here; so do embeddings given for a prompt. Tool calls are in it though
//! they are no text, because agents' conversations are made of them.
//!
//! Reads a body that [`check`](super::openai::check) let pass, once, in pieces, without a copy of it. No recursion.
//!
//! Invariant: `BLOCK_BYTES × blocks ≤ bytes`.

mod chain;

#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::json::{Cursor, JsonFault, Kind, RawStr};
use super::openai::{Input, Prompt, Request, Route};
use chain::Chain;
pub use chain::{BLOCK_BYTES, BLOCKS_MAX, Salt};

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    blocks: Vec<u64>,
    bytes: u64,
    ended: bool,
}

impl Prefix {
    /// Reads the prompt of `body` in place of what was there.
    pub fn read(&mut self, body: &[u8], request: &Request, route: Route, from: &From<'_>) {
        let mut chain = Chain::new(from.salt, &mut self.blocks);
        let mut text = Text {
            body,
            request,
            chain: &mut chain,
        };
        // The body has been checked, so a fault cannot be; it would end the string.
        self.ended = text.read(from.model, route) != Ok(Goes::On);
        self.bytes = chain.bytes();
    }

    /// A hash for each whole block; each stands for the prompt up to the end of its block.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Tokens in the first `blocks` blocks of a prompt of `prompt_tokens`: their share of the string, where all of the prompt is in
    /// it, else an estimate. Never the whole prompt: its last token is always read.
    pub fn tokens(&self, blocks: usize, prompt_tokens: u64, chars_per_token: f64) -> u64 {
        let bytes = (blocks.min(self.blocks.len()) * BLOCK_BYTES) as f64;
        let tokens = match self.ended || self.bytes == 0 {
            true => bytes / chars_per_token,
            false => prompt_tokens as f64 * bytes / self.bytes as f64,
        };
        (tokens as u64).min(prompt_tokens.saturating_sub(1))
    }

    /// Whether it has room that is worth keeping.
    pub fn has_room(&self) -> bool {
        self.blocks.capacity() > 0
    }

    /// Forgets the prompt and keeps the room for another.
    pub fn clear(&mut self) {
        self.blocks.clear();
        (self.bytes, self.ended) = (0, false);
    }
}

/// What prompts are compared within.
#[derive(Clone, Copy, Debug)]
pub struct From<'a> {
    pub salt: &'a Salt,
    /// The fleet's.
    pub model: &'a str,
}

/// Whether the string goes on behind what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    On,
    NoFurther,
}

type Result<T> = std::result::Result<T, JsonFault>;

/// A body on its way into the chain.
struct Text<'a, 'c, 'k> {
    body: &'a [u8],
    request: &'a Request,
    chain: &'c mut Chain<'k>,
}

/// No byte of UTF-8 is above 0xf4.
mod mark {
    pub const PART: &[u8] = &[0xf8];
    pub const MESSAGES: &[u8] = &[0xf9];
    pub const PROMPT: &[u8] = &[0xfa];
    pub const IDS: &[u8] = &[0xfb];
    pub const MESSAGE: &[u8] = &[0xfc];
    pub const CALLS: &[u8] = &[0xfd];
    pub const QUOTE: &[u8] = &[0xfe];
}

impl<'a> Text<'a, '_, '_> {
    fn read(&mut self, model: &str, route: Route) -> Result<Goes> {
        self.chain.push(model.as_bytes());
        for name in ["cache_salt", "chat_template", "chat_template_kwargs"] {
            self.chain.push(mark::PART);
            self.member(name)?;
        }
        if self.given("prompt_embeds").is_some() {
            return Ok(Goes::NoFurther);
        }
        match self.request.input(self.body, route) {
            Some(Input::Messages) => self.messages(),
            Some(Input::Prompt) => self.prompt(),
            None => Ok(Goes::NoFurther),
        }
    }

    fn prompt(&mut self) -> Result<Goes> {
        let only = self.request.only_prompt.clone();
        let value = match only {
            Some(span) => self.body.get(span),
            None => self.given("prompt"),
        };
        let Some(value) = value else {
            return Ok(Goes::NoFurther);
        };
        if matches!(self.request.prompt, Prompt::Counted(_)) {
            self.chain.push(mark::IDS);
            self.chain.seed();
            self.ids(value);
            return Ok(Goes::On);
        }
        self.chain.push(mark::PROMPT);
        self.chain.seed();
        text(self.chain, value)?;
        Ok(Goes::On)
    }

    /// A list of nonnegative integers, or one in a list. One past 32 bits is no token of any model: the highest stands for it.
    fn ids(&mut self, value: &[u8]) {
        for digits in value.split(|b| !b.is_ascii_digit()) {
            if !digits.is_empty() {
                let id = digits.iter().fold(0u32, |id, digit| {
                    let tens = id.saturating_mul(10);
                    tens.saturating_add(u32::from(digit - b'0'))
                });
                self.chain.push(&id.to_le_bytes());
            }
        }
    }

    fn messages(&mut self) -> Result<Goes> {
        self.chain.push(mark::MESSAGES);
        self.chain.seed();
        self.member("tools")?;
        let Some(messages) = self.given("messages") else {
            return Ok(Goes::NoFurther);
        };
        let mut c = Cursor::new(messages);
        c.peek()?;
        let mut walk = c.array()?;
        while c.item(&mut walk)? {
            c.peek()?;
            if message(self.chain, &mut c)? == Goes::NoFurther {
                return Ok(Goes::NoFurther);
            }
        }
        Ok(Goes::On)
    }

    /// The canonical text of a top-level member; nothing when it is absent.
    fn member(&mut self, name: &str) -> Result<()> {
        match self.given(name) {
            Some(value) => json(self.chain, value),
            None => Ok(()),
        }
    }

    fn given(&self, name: &str) -> Option<&'a [u8]> {
        self.request.layout.given(self.body, name)
    }
}

/// Passes the message at the cursor.
fn message(chain: &mut Chain<'_>, c: &mut Cursor<'_>) -> Result<Goes> {
    let [role, content, calls] = members(c, ["role", "content", "tool_calls"])?;
    chain.push(mark::MESSAGE);
    if let Some(role) = role {
        text(chain, &c.input()[role])?;
    }
    chain.push(mark::PART);
    if let Some(span) = content {
        let value = &c.input()[span];
        let goes = match value[0] {
            b'[' => parts(chain, value)?,
            _ => text(chain, value).map(|()| Goes::On)?,
        };
        if goes == Goes::NoFurther {
            return Ok(goes);
        }
    }
    if let Some(calls) = calls {
        chain.push(mark::CALLS);
        json(chain, &c.input()[calls])?;
    }
    Ok(Goes::On)
}

/// A message's parts.
fn parts(chain: &mut Chain<'_>, value: &[u8]) -> Result<Goes> {
    let mut c = Cursor::new(value);
    c.peek()?;
    let mut walk = c.array()?;
    let mut first = true;
    while c.item(&mut walk)? {
        if !std::mem::take(&mut first) {
            chain.push(b"\n");
        }
        let part = match c.peek()? {
            Kind::Object => {
                let [kind, part] = members(&mut c, ["type", "text"])?;
                let is_text = kind.is_none_or(|kind| is_text(&value[kind]));
                part.filter(|_| is_text)
            }
            _ => Some(c.skip()?),
        };
        match part.map(|span| &value[span]) {
            Some(part) if part[0] == b'"' => text(chain, part)?,
            _ => return Ok(Goes::NoFurther),
        }
    }
    Ok(Goes::On)
}

/// Passes the object at the cursor; where its last members of these names stand, without those that are `null`.
fn members<const N: usize>(
    c: &mut Cursor<'_>,
    names: [&str; N],
) -> Result<[Option<Range<usize>>; N]> {
    let mut found = [const { None }; N];
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let place = names.iter().position(|name| key.is(name));
        let kind = c.peek()?;
        let span = c.skip()?;
        if let Some(place) = place {
            found[place] = (kind != Kind::Null).then_some(span);
        }
    }
    Ok(found)
}

fn is_text(kind: &[u8]) -> bool {
    let named = |name: &str| Cursor::new(kind).string().is_ok_and(|s| s.is(name));
    kind[0] == b'"' && (named("text") || named("input_text"))
}

/// The content of a string; any other value in its canonical text.
fn text(chain: &mut Chain<'_>, value: &[u8]) -> Result<()> {
    if value[0] != b'"' {
        return json(chain, value);
    }
    // What was passed as a string has its quotes around it.
    let content = RawStr::of(&value[1..value.len() - 1]);
    content.pieces(|piece| chain.push(piece));
    Ok(())
}

/// The canonical text of a value: its tokens, without white space between them, strings unescaped between marks.
fn json(chain: &mut Chain<'_>, value: &[u8]) -> Result<()> {
    let mut at = 0;
    while let Some(byte) = value.get(at) {
        match byte {
            b'"' => {
                let content = Cursor::new(&value[at..]).string()?;
                chain.push(mark::QUOTE);
                content.pieces(|piece| chain.push(piece));
                chain.push(mark::QUOTE);
                // Two quotes.
                at += content.raw.len() + 2;
            }
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            _ => {
                let rest = &value[at..];
                let end = |b: &u8| matches!(b, b'"' | b' ' | b'\t' | b'\n' | b'\r');
                let run = rest.iter().position(end).unwrap_or(rest.len());
                chain.push(&rest[..run]);
                at += run;
            }
        }
    }
    Ok(())
}
