//! The shape of a stream's ordinary events, so that most of them need no walk.
//!
//! An engine writes the events of one stream alike: the same bytes but for one text and the ids it is made of. A [`Shape`] is one such
//! event, read the long way, and where these two stand in it. An event that has the same bytes everywhere else, a string where
//! the text stood and ids where the ids stood, is JSON of the same structure, and its facts follow. Anything else is read the long way.
//!
//! Owns one event of at most [`BYTES_MAX`] bytes. Invariant: whatever [`Shape::read`] takes, [`Facts::read`] would have told the same of.

use std::ops::Range;

use super::facts::{Facts, Ids, Varies};
use crate::wire::json::Cursor;

/// A longer event is read the long way. A guess: ordinary events of engines are under 500 bytes.
const BYTES_MAX: usize = 1_024;
/// Shapes learned in vain before the stream is taken for one whose events differ (log probabilities, running usage).
const MISSES_MAX: u8 = 8;

/// What the walk over one event saw of the parts that may vary.
#[derive(Clone, Debug, Default)]
pub(super) struct Spots {
    pub(super) choices: u32,
    /// Strings among the members that count as output, and the last one with its quotes.
    pub(super) texts: u32,
    pub(super) text: Range<usize>,
    /// Output that is no string.
    pub(super) odd: bool,
    /// Lists of ids within choices, and the last one with its brackets.
    pub(super) lists: u32,
    pub(super) list: Range<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Shape {
    /// Empty: none is known.
    event: Vec<u8>,
    /// In the order in which they stand.
    slots: [Slot; 2],
    /// Ends of the cuts, from where the text before each stands.
    cuts: Vec<Range<Moving>>,
    /// The ids are counted; else each event counts so many tokens.
    counted: bool,
    tokens: u64,
    misses: u8,
}

/// A place in the event that moves with what stands before it.
#[derive(Clone, Copy, Debug)]
struct Moving {
    /// So many slots stand before it: it is counted from the end of the last of them.
    slots: usize,
    offset: usize,
}

/// A part that varies, quotes or brackets included.
#[derive(Clone, Debug, Default)]
struct Slot {
    span: Range<usize>,
    what: What,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum What {
    /// A string that is not empty.
    Text,
    /// A list of one or more ids.
    Ids,
    #[default]
    Nothing,
}

impl Shape {
    /// Takes `value` if it has the shape; its facts are then in `facts`.
    #[inline]
    pub(super) fn read(&mut self, value: &[u8], facts: &mut Facts) -> bool {
        self.read_front(value, facts) == Some(value.len())
    }

    /// Takes the front of `bytes` if that has the shape, and says how long it is; its facts are then in `facts`.
    #[inline]
    pub(super) fn read_front(&mut self, bytes: &[u8], facts: &mut Facts) -> Option<usize> {
        if self.event.is_empty() {
            return None;
        }
        let mut tokens = self.tokens;
        // Up to where the shape and the bytes have been compared, and where the slots end in the bytes.
        let (mut known, mut pos) = (0, 0);
        let mut ends = [0; 3];
        let mut varies = Varies::default();
        for (slot, end) in self.slots.iter().zip(&mut ends[1..]) {
            let fixed = &self.event[known..slot.span.start];
            if !bytes[pos..].starts_with(fixed) {
                return None;
            }
            pos += fixed.len();
            *end = match slot.what {
                What::Text => {
                    let end = text_end(bytes, pos)?;
                    varies.text = pos..end;
                    end
                }
                What::Ids => {
                    let (end, count) = ids_end(bytes, pos)?;
                    if self.counted {
                        tokens = count;
                    }
                    varies.ids = pos..end;
                    end
                }
                What::Nothing => pos,
            };
            (known, pos) = (slot.span.end, *end);
        }
        let fixed = &self.event[known..];
        if !bytes[pos..].starts_with(fixed) {
            return None;
        }
        self.misses = 0;
        facts.tokens = tokens;
        facts.bears_token = true;
        facts.output = true;
        facts.ids_ok = true;
        facts.error = None;
        facts.abort = false;
        facts.varies = Some(varies);
        facts.cuts.clear();
        let at = |place: Moving| ends[place.slots] + place.offset;
        let cuts = self.cuts.iter().map(|cut| at(cut.start)..at(cut.end));
        facts.cuts.extend(cuts);
        Some(pos + fixed.len())
    }

    /// `value` was read the long way: it becomes the shape if it is an ordinary event.
    pub(super) fn learn(&mut self, value: &[u8], ids: Ids, facts: &Facts, spots: &Spots) {
        let ordinary = facts.output
            && facts.bears_token
            && facts.ids_ok
            && !facts.abort
            && facts.error.is_none()
            && (spots.choices, spots.texts, spots.odd) == (1, 1, false)
            && spots.lists <= 1
            && value.len() <= BYTES_MAX;
        if !ordinary || self.misses == MISSES_MAX {
            return;
        }
        self.misses += 1;
        if self.misses == MISSES_MAX {
            self.event = Vec::new();
            return;
        }
        let text = Slot {
            span: spots.text.clone(),
            what: What::Text,
        };
        let list = match spots.lists {
            0 => Slot {
                span: value.len()..value.len(),
                what: What::Nothing,
            },
            _ => Slot {
                span: spots.list.clone(),
                what: What::Ids,
            },
        };
        self.slots = if text.span.start < list.span.start {
            [text, list]
        } else {
            [list, text]
        };
        self.counted = ids == Ids::Expected;
        self.tokens = facts.tokens;
        self.event.clear();
        self.event.extend_from_slice(value);
        let place = |at: usize| {
            let slots = self.slots.iter().filter(|slot| slot.span.end <= at).count();
            let end = slots
                .checked_sub(1)
                .map_or(0, |last| self.slots[last].span.end);
            let offset = at - end;
            Moving { slots, offset }
        };
        self.cuts.clear();
        let cuts = facts.cuts.iter();
        self.cuts
            .extend(cuts.map(|cut| place(cut.start)..place(cut.end)));
    }

    pub(super) fn forget(&mut self) {
        self.event.clear();
        self.misses = 0;
    }

    pub(super) fn capacity(&self) -> usize {
        self.event.capacity()
    }
}

/// Where the string ends that begins at `at`, if there is one and it is not empty.
#[inline]
fn text_end(value: &[u8], at: usize) -> Option<usize> {
    let mut cursor = Cursor::new(value.get(at..)?);
    let text = cursor.string().ok()?;
    (!text.is_empty()).then_some(at + cursor.pos())
}

/// Where the list of ids ends that begins at `at`, and how many they are; `None` for anything but numbers in digits with commas and at
/// most a space between.
#[inline]
fn ids_end(value: &[u8], at: usize) -> Option<(usize, u64)> {
    let mut pos = at;
    let mut count = 0;
    if value.get(pos) != Some(&b'[') {
        return None;
    }
    loop {
        pos += 1;
        let rest = value.get(pos..)?;
        let digits = rest.iter().position(|b| !b.is_ascii_digit())?;
        // JSON has no number without digits and none with a zero in front.
        if digits == 0 || (rest[0] == b'0' && digits > 1) {
            return None;
        }
        pos += digits;
        count += 1;
        match rest[digits] {
            b']' => return Some((pos + 1, count)),
            b',' if rest.get(digits + 1) == Some(&b' ') => pos += 1,
            b',' => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `first` the long way, then `second` the short way; both ways must tell the same of it.
    fn taken(first: &str, second: &str, ids: Ids) -> bool {
        let (mut shape, mut facts, mut spots) = <(Shape, Facts, Spots)>::default();
        assert!(facts.read_spots(first.as_bytes(), ids, &mut spots));
        shape.learn(first.as_bytes(), ids, &facts, &spots);
        let taken = shape.read(second.as_bytes(), &mut facts);
        if taken {
            let mut want = Facts::default();
            assert!(want.read(second.as_bytes(), ids), "{second}");
            want.varies = facts.varies.clone();
            let text = facts
                .varies()
                .map(|varies| second[varies.text.clone()].to_owned());
            assert!(text.is_some_and(|text| text.len() > 2
                && text.starts_with('"')
                && text.ends_with('"')));
            assert_eq!(facts, want, "{second}");
        }
        taken
    }

    const TEXT: &str = r#"{"id":"a","choices":[{"index":0,"text":"one","finish_reason":null,"token_ids":[1],"prompt_token_ids":null}],"usage":null}"#;
    const CHAT: &str =
        r#"{"choices":[{"token_ids":[1],"delta":{"content":"one"},"finish_reason":null}]}"#;

    // proves R-TOK-1
    #[test]
    fn events_of_the_same_shape_need_no_walk() {
        // what changes, into what, whether the short way takes it
        let rows = [
            ("one", "another", true),
            ("one", "o", true),
            ("one", "", false),
            ("one", r#"q\"q\\"#, true),
            ("one", r"\ud83d", true),
            ("one", r"\x", false),
            ("one", "a\tb", false),
            ("[1]", "[1,22,333]", true),
            ("[1]", "[1, 2]", true),
            ("[1]", "[0]", true),
            ("[1]", "[01]", false),
            ("[1]", "[1.5]", false),
            ("[1]", "[-1]", false),
            ("[1]", "[]", false),
            ("[1]", "[1,]", false),
            ("[1]", "null", false),
            ("null", r#""stop""#, false),
            ("index", "inde", false),
            ("}]", "} ]", false),
        ];
        for event in [TEXT, CHAT] {
            for (from, to, want) in rows {
                if !event.contains(from) {
                    continue;
                }
                let second = event.replacen(from, to, 1);
                assert_eq!(taken(event, &second, Ids::Expected), want, "{second}");
            }
            for end in 0..event.len() {
                assert!(!taken(event, &event[..end], Ids::Expected), "cut at {end}");
            }
            assert!(!taken(event, &format!("{event} "), Ids::Expected));
        }
    }

    #[test]
    fn without_ids_an_event_counts_as_before() {
        for ids in [Ids::Absent, Ids::AbsentSglang] {
            assert!(taken(TEXT, &TEXT.replace("[1]", "[2,3]"), ids));
            let bare = r#"{"choices":[{"delta":{"reasoning":"one"}}]}"#;
            assert!(taken(bare, &bare.replace("one", "two"), ids));
        }
    }

    // proves R-TOK-1
    #[test]
    fn odd_events_are_no_shape() {
        for odd in [
            // two choices, two texts, output that is no string, a last event, an error, none of these
            r#"{"choices":[{"text":"a","token_ids":[1]},{"text":"b","token_ids":[1]}]}"#,
            r#"{"choices":[{"text":"a","delta":{"content":"a"},"token_ids":[1]}]}"#,
            r#"{"choices":[{"text":"a","text":"b","token_ids":[1]}]}"#,
            r#"{"choices":[{"text":"a","token_ids":[1],"token_ids":[1]}]}"#,
            r#"{"choices":[{"text":"a","token_ids":[1]}],"choices":[{"text":"a","token_ids":[1]}]}"#,
            r#"{"choices":[{"delta":{"content":"a","tool_calls":[{}]},"token_ids":[1]}]}"#,
            r#"{"choices":[{"text":"a","token_ids":[1],"finish_reason":"abort"}]}"#,
            r#"{"choices":[{"text":"a","token_ids":[1]}],"error":{}}"#,
            r#"{"choices":[{"text":"","token_ids":[1]}]}"#,
            r#"{"choices":[]}"#,
        ] {
            assert!(!taken(odd, odd, Ids::Expected), "{odd}");
        }
        let long = TEXT.replace("one", &"x".repeat(BYTES_MAX));
        assert!(!taken(&long, &long, Ids::Expected));
    }

    #[test]
    fn a_stream_of_differing_events_is_given_up() {
        let (mut shape, mut facts) = <(Shape, Facts)>::default();
        let event = |n: u32| TEXT.replace("\"usage\":null", &format!("\"usage\":{n}"));
        for n in 0..20 {
            let mut spots = Spots::default();
            let event = event(n);
            assert!(!shape.read(event.as_bytes(), &mut facts));
            assert!(facts.read_spots(event.as_bytes(), Ids::Expected, &mut spots));
            shape.learn(event.as_bytes(), Ids::Expected, &facts, &spots);
        }
        assert!(!shape.read(event(19).as_bytes(), &mut facts));
        assert_eq!(shape.capacity(), 0);
        shape.forget();
        let mut spots = Spots::default();
        assert!(facts.read_spots(TEXT.as_bytes(), Ids::Expected, &mut spots));
        shape.learn(TEXT.as_bytes(), Ids::Expected, &facts, &spots);
        assert!(shape.read(TEXT.as_bytes(), &mut facts));
    }
}
