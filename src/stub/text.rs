//! The words that a simulated engine reads and writes. Owns the vocabulary; a pure function of its arguments.
//!
//! **Writing.** The token of an answer at index `i` is a function of the prompt's seed and `i` alone; its id tells its text,
//! and the id of its successor. Ids step through the vocabulary by a fixed odd stride, so all [`VOCAB`] ids come before one
//! comes again: whoever reads an answer can check that nothing is lost, doubled or out of order, from the ids or from the
//! text, without knowing the prompt ([`Check`]). A piece is a space, a word of three syllables that spells the token's
//! place, and for some places a tail: multi-byte characters, JSON escapes, a line separator. One piece in 64 is empty,
//! as the first token of a character that takes two (vLLM sends such events with empty text, or none).
//!
//! **Reading.** The tokenizer cuts text every four bytes, a little earlier where that would split a character; so ASCII text
//! of `n` bytes has ⌈n / 4⌉ tokens, and texts with a common start have a common start of ids.
//!
//! Invariant: `id = FIRST + place·STRIDE mod VOCAB`, `FIRST ≤ id < FIRST + VOCAB`; 0 ≤ ids < FIRST are control tokens.

/// First id that stands for text.
pub const FIRST: u32 = 256;

/// Ids that stand for text. A power of two, and 32³: three syllables of 32.
pub const VOCAB: u32 = 1 << 15;

/// Control tokens, as in the ChatML templates that most engines use.
pub const TURN_START: u32 = 1;
pub const TURN_END: u32 = 2;

/// The token that ends an answer. Its text is empty.
pub const EOS: u32 = TURN_END;

/// The token of an answer at `index`.
pub fn id_at(seed: u64, index: u64) -> u32 {
    id_of_place((seed.wrapping_add(index) % u64::from(VOCAB)) as u32)
}

/// The id that must come after `id`, or `None` for a control token or an id outside the vocabulary.
pub fn successor(id: u32) -> Option<u32> {
    place_of_id(id).map(|place| id_of_place((place + 1) % VOCAB))
}

/// Appends the text of `id`, escaped for a JSON string. Empty for control tokens and unknown ids.
pub fn piece_json(id: u32, out: &mut Vec<u8>) {
    piece(id, out, |tail| tail.json);
}

/// Appends the text of `id` as it is.
pub fn piece_text(id: u32, out: &mut Vec<u8>) {
    piece(id, out, |tail| tail.text);
}

/// Whether the text of `id` is empty.
pub fn is_silent(id: u32) -> bool {
    place_of_id(id).is_none_or(|place| place % TAIL_PERIOD == SILENT)
}

/// The seed of a prompt: FNV-1a (64 bit) over its token ids, folded. The same prompt gives the same answer, in whatever form it came.
pub fn seed(prompt_ids: &[u32]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for id in prompt_ids {
        h = (h ^ u64::from(*id)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h ^ (h >> 32)
}

/// Appends the ids of `text`.
pub fn tokenize(text: &[u8], out: &mut Vec<u32>) {
    for piece in Pieces(text) {
        out.push(id_of_piece(piece));
    }
}

/// The pieces that [`tokenize`] makes ids of.
#[derive(Clone, Debug)]
pub struct Pieces<'a>(pub &'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let mut end = self.0.len().min(4);
        // Not inside a character; bad UTF-8 (more than three continuation bytes) is cut at four.
        while end > 1 && self.0.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
            end -= 1;
        }
        if self.0.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
            end = self.0.len().min(4);
        }
        let (piece, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(piece)
    }
}

/// Checks an answer as it comes: every token, in order, none twice. Feed it ids or text, not both.
#[derive(Clone, Debug, Default)]
pub struct Check {
    expected: Option<u32>,
    /// Text not yet matched: fewer bytes than the piece they begin.
    pending: Vec<u8>,
    piece: Vec<u8>,
    /// Tokens seen.
    pub tokens: u64,
}

impl Check {
    /// Whether `id` may come now. Control tokens are counted and may come anywhere.
    pub fn id(&mut self, id: u32) -> bool {
        self.tokens += 1;
        let Some(next) = successor(id) else {
            return id < FIRST;
        };
        let right = self.expected.is_none_or(|want| want == id);
        self.expected = Some(next);
        right
    }

    /// Whether `text`, unescaped, may come now. An empty piece at the very start or end of an answer cannot be seen in text.
    pub fn text(&mut self, text: &[u8]) -> bool {
        self.pending.extend_from_slice(text);
        loop {
            let id = match self.expected {
                Some(id) => id,
                None => match self.pending.get(..WORD_BYTES) {
                    None => return true,
                    Some(word) => match id_of_word(word) {
                        Some(id) => id,
                        None => return false,
                    },
                },
            };
            self.piece.clear();
            piece_text(id, &mut self.piece);
            if !self.piece.is_empty() {
                if self.pending.is_empty() {
                    return true;
                }
                if !self.pending.starts_with(&self.piece) {
                    return self.piece.starts_with(&self.pending);
                }
                self.pending.drain(..self.piece.len());
            }
            self.expected = successor(id);
            self.tokens += 1;
        }
    }

    /// Whether the text ended at the end of a piece.
    pub fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }
}

/// What stands behind a word, by the token's place in a period of [`TAIL_PERIOD`].
struct Tail {
    text: &'static str,
    json: &'static str,
}

const TAIL_PERIOD: u32 = 64;

/// The place whose piece is empty; the next one ends in the four-byte character that it began.
const SILENT: u32 = 62;

const PLAIN: Tail = Tail { text: "", json: "" };

/// Sorted by how a parser may fail on them. JSON forms are Python's: only what must be escaped is.
fn tail(place: u32) -> Tail {
    let (text, json) = match place % TAIL_PERIOD {
        7 => ("é", "é"),
        13 => (".\n", ".\\n"),
        21 => (", \"so\"", ", \\\"so\\\""),
        29 => ("日本語", "日本語"),
        37 => (" C:\\", " C:\\\\"),
        // Raw in JSON, and no line end in an event stream.
        45 => ("\u{2028}", "\u{2028}"),
        // Looks like the end of a stream.
        53 => ("\n\ndata: [DONE]\n\n", "\\n\\ndata: [DONE]\\n\\n"),
        57 => ("\t\u{1}", "\\t\\u0001"),
        63 => ("🙂", "🙂"),
        _ => return PLAIN,
    };
    Tail { text, json }
}

/// Coprime to `VOCAB`, and large, so that neighbours in an answer do not look alike as ids.
const STRIDE: u32 = 12_345;

/// `STRIDE · STRIDE_INVERSE = 1 mod VOCAB`.
const STRIDE_INVERSE: u32 = inverse(STRIDE);

const _: () = assert!(STRIDE.wrapping_mul(STRIDE_INVERSE) % VOCAB == 1);
const _: () = assert!(VOCAB == 32 * 32 * 32);

const CONSONANTS: &[u8; 8] = b"bdklmnrt";
const VOWELS: &[u8; 4] = b"aeio";

/// A space and three syllables.
const WORD_BYTES: usize = 7;

const fn inverse(odd: u32) -> u32 {
    // Newton's iteration: every step doubles the bits that are right, starting from three.
    let mut x = odd;
    let mut i = 0;
    while i < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x % VOCAB
}

fn id_of_place(place: u32) -> u32 {
    FIRST + place.wrapping_mul(STRIDE) % VOCAB
}

fn place_of_id(id: u32) -> Option<u32> {
    let offset = id.checked_sub(FIRST).filter(|o| *o < VOCAB)?;
    Some(offset.wrapping_mul(STRIDE_INVERSE) % VOCAB)
}

fn piece(id: u32, out: &mut Vec<u8>, form: fn(Tail) -> &'static str) {
    let Some(place) = place_of_id(id) else {
        return;
    };
    if place % TAIL_PERIOD == SILENT {
        return;
    }
    let [a, b, c] = [place >> 10, place >> 5, place].map(|s| {
        let s = (s & 31) as usize;
        (CONSONANTS[s >> 2], VOWELS[s & 3])
    });
    out.extend_from_slice(&[b' ', a.0, a.1, b.0, b.1, c.0, c.1]);
    out.extend_from_slice(form(tail(place)).as_bytes());
}

fn id_of_word(word: &[u8]) -> Option<u32> {
    let (space, syllables) = word.split_first()?;
    let mut place = 0;
    for s in syllables.chunks(2) {
        let consonant = CONSONANTS.iter().position(|c| Some(c) == s.first())?;
        let vowel = VOWELS.iter().position(|v| Some(v) == s.get(1))?;
        place = place << 5 | (consonant << 2 | vowel) as u32;
    }
    (*space == b' ' && word.len() == WORD_BYTES).then(|| id_of_place(place))
}

fn id_of_piece(piece: &[u8]) -> u32 {
    let mut h = piece.len() as u32;
    for b in piece {
        h = (h ^ u32::from(*b)).wrapping_mul(0x0100_0193);
    }
    FIRST + (h ^ (h >> 15)) % VOCAB
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
        let mut out = Vec::new();
        ids.into_iter().for_each(|id| piece_text(id, &mut out));
        out
    }

    #[test]
    fn every_id_comes_once_and_tells_its_successor() {
        let mut seen = vec![false; VOCAB as usize];
        for i in 0..u64::from(VOCAB) {
            let id = id_at(99, i);
            assert!(!std::mem::replace(&mut seen[(id - FIRST) as usize], true));
            assert_eq!(successor(id), Some(id_at(99, i + 1)));
        }
        assert_eq!(id_at(99, u64::from(VOCAB)), id_at(99, 0));
        assert_eq!((successor(EOS), successor(FIRST + VOCAB)), (None, None));
        assert_eq!(id_at(u64::MAX, 1), id_at(0, 0));
    }

    #[test]
    fn json_form_is_the_text_escaped() {
        for i in 0..u64::from(VOCAB) {
            let id = id_at(0, i);
            let mut json = vec![b'"'];
            piece_json(id, &mut json);
            json.push(b'"');
            let back: String = serde_json::from_slice(&json).unwrap();
            assert_eq!(back.as_bytes(), text_of([id]), "place {i}");
            assert_eq!(back.is_empty(), is_silent(id));
        }
    }

    #[test]
    fn check_takes_the_right_answer_at_any_split_and_no_other() {
        let ids: Vec<u32> = (0..200).map(|i| id_at(5, i)).collect();
        let mut by_id = Check::default();
        assert!(ids.iter().all(|id| by_id.id(*id)));
        assert!(by_id.id(EOS));
        assert_eq!(by_id.tokens, 201);

        let text = text_of(ids.iter().copied());
        for step in [1, 2, 3, 7, 64, text.len()] {
            let mut by_text = Check::default();
            assert!(text.chunks(step).all(|t| by_text.text(t)), "step {step}");
            assert!(by_text.is_whole());
            assert_eq!(by_text.tokens, 200);
        }
        for wrong in [1, 50, 198] {
            // name, ids
            let rows = [
                ("lost", [&ids[..wrong], &ids[wrong + 1..]].concat()),
                ("doubled", [&ids[..=wrong], &ids[wrong..]].concat()),
                ("swapped", {
                    let mut v = ids.clone();
                    v.swap(wrong, wrong - 1);
                    v
                }),
            ];
            for (name, ids) in rows {
                let mut by_id = Check::default();
                assert!(!ids.iter().all(|id| by_id.id(*id)), "{name} {wrong}");
                let text = text_of(ids);
                assert!(!Check::default().text(&text), "{name} {wrong}");
            }
        }
        assert!(!Check::default().id(FIRST + VOCAB));
    }

    #[test]
    fn tokenizer_is_quarter_of_bytes_and_keeps_prefixes() {
        // text, tokens
        let rows = [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("Once upon a time", 4),
            ("🙂🙂", 2),
            ("a🙂", 2),
            ("日本語", 3),
        ];
        for (text, tokens) in rows {
            let mut ids = Vec::new();
            tokenize(text.as_bytes(), &mut ids);
            assert_eq!(ids.len(), tokens, "{text}");
            assert!(Pieces(text.as_bytes()).all(|p| std::str::from_utf8(p).is_ok()));
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        tokenize(b"Once upon a time there", &mut a);
        tokenize(b"Once upon a tide", &mut b);
        assert_eq!(a[..3], b[..3]);
        assert_ne!(a[3], b[3]);
        assert_eq!(Pieces(&[0x80; 9]).map(<[u8]>::len).sum::<usize>(), 9);
        assert_ne!(seed(&a), seed(&b));
    }
}
