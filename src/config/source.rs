//! JSON or TOML text to one tree whose every value and key knows its byte offset. Owns the syntax faults.
//!
//! JSON goes through the crate's own strict cursor (`wire::json`, pure: the one room below that this one uses, for there must
//! be one JSON grammar in the house); TOML through the spanned tables of the `toml` crate. Both feed one builder with an
//! explicit stack, so depth costs no call stack, and both take TOML's and JSON's numbers as text.
//!
//! Invariant: the tree is at most `limits::JSON_DEPTH_MAX` deep, and every offset is ≤ the text's length.

use toml::de::{DeTable, DeValue};

use crate::base::limits;
use crate::wire::json::{Cursor, JsonFault, Kind, RawStr, Walk, What};

/// How the text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Toml,
}

/// A value and where it starts.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: usize,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    /// A number as written, but without TOML's underscores.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Member>),
    /// TOML only.
    Date,
}

/// A member of a table, in file order.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub key: String,
    pub key_at: usize,
    pub node: Node,
}

/// Where and why the text is not what its format says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxFault {
    pub at: usize,
    pub what: String,
}

pub(crate) fn read(text: &str, format: Format) -> Result<Node, SyntaxFault> {
    match format {
        Format::Json => json(text).map_err(|fault| json_fault(text, fault)),
        Format::Toml => toml(text),
    }
}

impl Node {
    /// The value in a few words, for messages.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Null => "null".to_owned(),
            Value::Flag(flag) => flag.to_string(),
            Value::Number(text) => cut(text),
            Value::Text(text) => shown_text(text),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
            Value::Date => "a date".to_owned(),
        }
    }
}

/// A string as messages show it: quoted, escaped, cut.
pub(crate) fn shown_text(text: &str) -> String {
    format!("{:?}", cut(text))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn json(text: &str) -> Result<Node, JsonFault> {
    let mut cursor = Cursor::strict(text.as_bytes());
    let mut walks: Vec<Walk> = Vec::new();
    let mut builder = Builder::default();
    loop {
        // A value starts here.
        let kind = cursor.peek()?;
        let at = cursor.pos();
        match kind {
            Kind::Object => {
                walks.push(cursor.object()?);
                builder.open(at, Inside::Table(Vec::new()));
            }
            Kind::Array => {
                walks.push(cursor.array()?);
                builder.open(at, Inside::List(Vec::new()));
            }
            Kind::String => builder.add(at, Value::Text(unescaped(cursor.string()?))),
            Kind::Number => builder.add(at, Value::Number(lossy(cursor.number()?))),
            Kind::True | Kind::False => {
                cursor.skip()?;
                builder.add(at, Value::Flag(kind == Kind::True));
            }
            Kind::Null => {
                cursor.skip()?;
                builder.add(at, Value::Null);
            }
        }
        // Pass closing brackets up to the next member, item, or the end.
        loop {
            let Some(walk) = walks.last_mut() else {
                cursor.finish()?;
                return builder.done.ok_or(JsonFault {
                    at: 0,
                    what: What::End,
                });
            };
            if builder.in_table() {
                if let Some(key) = cursor.key(walk)? {
                    builder.key(unescaped(key), key.at);
                    break;
                }
            } else if cursor.item(walk)? {
                break;
            }
            walks.pop();
            builder.close();
        }
    }
}

fn unescaped(text: RawStr<'_>) -> String {
    let mut out = Vec::new();
    text.unescape_into(&mut out);
    lossy(&out)
}

/// The text came in as UTF-8 and a strict cursor lets no lone surrogate pass, so nothing is lost.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json_fault(text: &str, fault: JsonFault) -> SyntaxFault {
    let before = text.get(..fault.at).unwrap_or("").trim_end();
    let rest = text.get(fault.at..).unwrap_or("");
    let what = match fault.what {
        What::End => "not JSON: the text ends too early".to_owned(),
        What::Byte if before.ends_with(',') && rest.starts_with(['}', ']']) => {
            "not JSON: a comma before a closing bracket".to_owned()
        }
        What::Byte if rest.starts_with(['/', '#']) => {
            "not JSON: comments are not allowed; use a key that starts with `_`".to_owned()
        }
        What::Byte | What::Trailing => match rest.chars().next() {
            Some(ch) => format!("not JSON: unexpected {ch:?}"),
            None => "not JSON: the text ends too early".to_owned(),
        },
        What::Number => "not JSON: a malformed number".to_owned(),
        What::String => "not JSON: a bad escape or a control character in a string".to_owned(),
        What::Surrogate => "not JSON: an unpaired surrogate escape".to_owned(),
        What::Depth => too_deep(),
    };
    SyntaxFault { at: fault.at, what }
}

fn too_deep() -> String {
    format!("nested deeper than {} levels", limits::JSON_DEPTH_MAX)
}

/// What is left to visit on one level of a TOML tree.
enum Level<'i> {
    Table(std::vec::IntoIter<(String, usize, usize, DeValue<'i>)>),
    List(std::vec::IntoIter<(usize, DeValue<'i>)>),
}

/// Takes the tree of the `toml` crate apart by value and level by level: dotted keys inside inline tables can nest deeper
/// than that crate's own limits suggest, and dropping such a tree whole would recurse.
fn toml(text: &str) -> Result<Node, SyntaxFault> {
    let (root, faults) = DeTable::parse_recoverable(text);
    let mut fault = faults.first().map(|first| SyntaxFault {
        at: first.span().map_or(text.len(), |span| span.start),
        what: format!("not TOML: {}", first.message()),
    });
    let mut builder = Builder::default();
    let mut levels = vec![Level::Table(members(root.into_inner()))];
    builder.open(0, Inside::Table(Vec::new()));
    while let Some(level) = levels.last_mut() {
        let next = match level {
            Level::Table(members) => members.next().map(|(key, key_at, at, value)| {
                builder.key(key, key_at);
                (at, value)
            }),
            Level::List(items) => items.next(),
        };
        let Some((at, value)) = next else {
            levels.pop();
            builder.close();
            continue;
        };
        if levels.len() >= limits::JSON_DEPTH_MAX && fault.is_none() {
            fault = Some(SyntaxFault {
                at,
                what: too_deep(),
            });
        }
        match value {
            DeValue::String(text) => builder.add(at, Value::Text(text.into_owned())),
            DeValue::Boolean(flag) => builder.add(at, Value::Flag(flag)),
            DeValue::Float(number) => builder.add(at, Value::Number(number.as_str().to_owned())),
            DeValue::Integer(number) => {
                let (digits, radix) = (number.as_str(), number.radix());
                // Past 64 bits the text stands, to be refused as out of range.
                let text = i64::from_str_radix(digits, radix)
                    .map_or_else(|_| number.to_string(), |n| n.to_string());
                builder.add(at, Value::Number(text));
            }
            DeValue::Datetime(_) => builder.add(at, Value::Date),
            DeValue::Array(items) => {
                let items: Vec<_> = items
                    .into_iter()
                    .map(|item| (item.span().start, item.into_inner()))
                    .collect();
                levels.push(Level::List(items.into_iter()));
                builder.open(at, Inside::List(Vec::new()));
            }
            DeValue::Table(table) => {
                levels.push(Level::Table(members(table)));
                builder.open(at, Inside::Table(Vec::new()));
            }
        }
    }
    match (fault, builder.done) {
        (Some(fault), _) => Err(fault),
        (None, Some(node)) => Ok(node),
        (None, None) => Err(SyntaxFault {
            at: 0,
            what: "not TOML".to_owned(),
        }),
    }
}

/// Members in file order; the crate keeps them in order of names.
fn members<'i>(table: DeTable<'i>) -> std::vec::IntoIter<(String, usize, usize, DeValue<'i>)> {
    let mut members: Vec<_> = table
        .into_iter()
        .map(|(key, value)| {
            let (key_at, at) = (key.span().start, value.span().start);
            (
                key.into_inner().into_owned(),
                key_at,
                at,
                value.into_inner(),
            )
        })
        .collect();
    members.sort_by_key(|(_, key_at, ..)| *key_at);
    members.into_iter()
}

/// Puts nodes together, innermost last.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    done: Option<Node>,
}

struct Open {
    at: usize,
    key: Option<(String, usize)>,
    inside: Inside,
}

enum Inside {
    Table(Vec<Member>),
    List(Vec<Node>),
}

impl Builder {
    fn in_table(&self) -> bool {
        matches!(self.open.last().map(|o| &o.inside), Some(Inside::Table(_)))
    }

    fn open(&mut self, at: usize, inside: Inside) {
        self.open.push(Open {
            at,
            key: None,
            inside,
        });
    }

    fn key(&mut self, key: String, key_at: usize) {
        if let Some(open) = self.open.last_mut() {
            open.key = Some((key, key_at));
        }
    }

    fn add(&mut self, at: usize, value: Value) {
        // Deeper than allowed: the fault is noted elsewhere, and the tree must not grow deep enough to recurse in its drop.
        if self.open.len() > limits::JSON_DEPTH_MAX {
            return;
        }
        let node = Node { at, value };
        match self.open.last_mut() {
            None => self.done = Some(node),
            Some(open) => match &mut open.inside {
                Inside::List(items) => items.push(node),
                Inside::Table(members) => {
                    if let Some((key, key_at)) = open.key.take() {
                        members.push(Member { key, key_at, node });
                    }
                }
            },
        }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.pop() {
            let value = match open.inside {
                Inside::List(items) => Value::List(items),
                Inside::Table(members) => Value::Table(members),
            };
            self.add(open.at, value);
        }
    }
}

/// Characters of a value that a message shows.
const SHOWN_CHARS_MAX: usize = 60;
