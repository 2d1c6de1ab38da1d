//! Single values of a body, with the words pydantic has for wrong ones.
//!
//! Invariant: `None` is `null`; after an `Ok` the cursor stands behind the value.

use super::reader::Reader;
use crate::stub::refusal::Refusal;
use crate::wire::json::{Cursor, JsonFault, Kind, What};

impl Reader<'_> {
    pub(super) fn text(&mut self, loc: &str) -> Result<Option<String>, Refusal> {
        match self.peek()? {
            Kind::Null => Ok(None),
            Kind::String => {
                let mut text = Vec::new();
                self.cursor.string().map_err(json)?.unescape_into(&mut text);
                Ok(Some(String::from_utf8_lossy(&text).into_owned()))
            }
            _ => Err(self.type_fault("string_type", loc, STRING)?),
        }
    }

    pub(super) fn flag(&mut self, loc: &str) -> Result<Option<bool>, Refusal> {
        let kind = self.peek()?;
        let (fault, msg) = match kind {
            Kind::String => (
                "bool_parsing",
                "Input should be a valid boolean, unable to interpret input",
            ),
            _ => ("bool_type", "Input should be a valid boolean"),
        };
        let value = match kind {
            Kind::Null => None,
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => return Err(self.type_fault(fault, loc, msg)?),
        };
        self.cursor.skip().map_err(json)?;
        Ok(value)
    }

    pub(super) fn number(&mut self, loc: &str) -> Result<Option<f64>, Refusal> {
        match self.peek()? {
            Kind::Null => Ok(None),
            Kind::Number => {
                let text = self.cursor.number().map_err(json)?;
                // The grammar of JSON numbers is within that of Rust's floats.
                Ok(std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()))
            }
            _ => Err(self.type_fault("float_type", loc, "Input should be a valid number")?),
        }
    }

    pub(super) fn integer(&mut self, loc: &str) -> Result<Option<i64>, Refusal> {
        match self.peek()? {
            Kind::Null => return Ok(None),
            Kind::Number => {}
            Kind::String => {
                let msg = "Input should be a valid integer, unable to parse string as an integer";
                return Err(self.type_fault("int_parsing", loc, msg)?);
            }
            _ => {
                return Err(self.type_fault("int_type", loc, "Input should be a valid integer")?);
            }
        }
        let before = self.cursor.clone();
        match self.number(loc)? {
            // Exact below 2^53; above it only "very many" matters.
            Some(n) if n.fract() == 0.0 => Ok(Some(n as i64)),
            _ => {
                self.cursor = before;
                let msg = "Input should be a valid integer, got a number with a fractional part";
                Err(self.type_fault("int_from_float", loc, msg)?)
            }
        }
    }

    /// Whether an object is next; `null` is passed over, anything else is a fault.
    pub(super) fn enter_object(&mut self, loc: &str, fault: &str) -> Result<bool, Refusal> {
        match self.peek()? {
            Kind::Object => Ok(true),
            Kind::Null => {
                self.cursor.skip().map_err(json)?;
                Ok(false)
            }
            _ => Err(self.type_fault(fault, loc, DICT)?),
        }
    }

    pub(super) fn type_fault(
        &mut self,
        kind: &str,
        loc: &str,
        msg: &str,
    ) -> Result<Refusal, Refusal> {
        let input = self.input()?;
        Ok(Refusal::schema(kind, loc, msg, &input, ""))
    }

    /// The next value as the schema's messages show it.
    pub(super) fn input(&mut self) -> Result<String, Refusal> {
        let mut items = 0;
        let kind = self.peek()?;
        Ok(match kind {
            Kind::Null => "None".into(),
            Kind::True => "True".into(),
            Kind::False => "False".into(),
            Kind::String => self.text("")?.unwrap_or_default(),
            Kind::Number => {
                String::from_utf8_lossy(self.cursor.number().map_err(json)?).into_owned()
            }
            Kind::Array => {
                let mut walk = self.cursor.array().map_err(json)?;
                while self.cursor.item(&mut walk).map_err(json)? {
                    self.cursor.skip().map_err(json)?;
                    items += 1;
                }
                format!("<list of {items} items>")
            }
            Kind::Object => {
                let mut walk = self.cursor.object().map_err(json)?;
                while self.cursor.key(&mut walk).map_err(json)?.is_some() {
                    self.cursor.skip().map_err(json)?;
                    items += 1;
                }
                format!("<dict of {items} items>")
            }
        })
    }

    pub(super) fn peek(&mut self) -> Result<Kind, Refusal> {
        self.cursor.peek().map_err(json)
    }

    pub(super) fn finish(&self) -> Result<(), Refusal> {
        self.cursor.clone().finish().map_err(json)
    }
}

pub(super) const STRING: &str = "Input should be a valid string";
pub(super) const LIST: &str = "Input should be a valid list";
pub(super) const DICT: &str = "Input should be a valid dictionary";

/// A fault on the way; [`not_json`] finds the words for it.
pub(super) fn json(fault: JsonFault) -> Refusal {
    decode_error(fault.at, "Expecting value")
}

/// What Python's decoder says of a body that is no JSON, and where it says it is.
pub(super) fn not_json(body: &[u8]) -> Option<Refusal> {
    let mut cursor = Cursor::new(body);
    let fault = match cursor.skip() {
        Ok(_) => cursor.finish().err()?,
        Err(fault) => fault,
    };
    let (at, error) = python(body, fault);
    Some(decode_error(at, error))
}

fn python(body: &[u8], fault: JsonFault) -> (usize, &'static str) {
    const NAME: &str = "Expecting property name enclosed in double quotes";
    let (mut open, mut string, mut last, mut is_name) = (Vec::new(), None, b' ', false);
    let mut at = 0;
    // Brackets nest no deeper than the cursor went.
    while at < fault.at.min(body.len()) {
        match (string, body[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(_), b'"') => (string, last) = (None, b'"'),
            (None, b'"') => {
                is_name = open.last() == Some(&b'{') && matches!(last, b'{' | b',');
                string = Some(at);
            }
            (None, b @ (b'{' | b'[')) => {
                open.push(b);
                last = b;
            }
            (None, b @ (b'}' | b']')) => {
                open.pop();
                last = b;
            }
            (None, b) if !b.is_ascii_whitespace() => last = b,
            _ => {}
        }
        at += 1;
    }
    let error = match (fault.what, open.last(), last) {
        (What::Depth, ..) => "maximum recursion depth exceeded",
        (What::Trailing, ..) => "Extra data",
        (What::End, ..) if string.is_some() => "Unterminated string starting at",
        (What::String | What::Surrogate, ..) => "Invalid control character at",
        (_, Some(b'{'), b'{' | b',') => NAME,
        (_, Some(b'{'), b'"') if is_name => "Expecting ':' delimiter",
        (_, Some(b'{'), b':') | (_, Some(b'['), b'[' | b',') | (_, None, _) => "Expecting value",
        _ => "Expecting ',' delimiter",
    };
    let at = match (fault.what, string) {
        (What::End, Some(start)) => start,
        _ => fault.at,
    };
    (at, error)
}

fn decode_error(at: usize, error: &str) -> Refusal {
    let loc = format!("body.{at}");
    let more = format!(", 'ctx': {{'error': '{}'}}", error.replace('\'', "\\'"));
    Refusal::schema(
        "json_invalid",
        &loc,
        "JSON decode error",
        "<dict of 0 items>",
        &more,
    )
}
