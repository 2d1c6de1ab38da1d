//! Single values of a body, with the words pydantic has for wrong ones.
//!
//! Invariant: `None` is `null`; after an `Ok` the cursor stands behind the value.

use super::reader::Reader;
use crate::stub::refusal::Refusal;
use crate::wire::json::{JsonFault, Kind, What};

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
pub(super) const DICT: &str = "Input should be a valid dictionary";

pub(super) fn json(fault: JsonFault) -> Refusal {
    let loc = format!("body.{}", fault.at);
    let error = match fault.what {
        What::End => "Unterminated string starting at",
        What::Byte | What::Number => "Expecting value",
        What::String | What::Surrogate => "Invalid control character at",
        What::Depth => "maximum recursion depth exceeded",
        What::Trailing => "Extra data",
    };
    let more = format!(", 'ctx': {{'error': '{error}'}}");
    Refusal::schema(
        "json_invalid",
        &loc,
        "JSON decode error",
        "<dict of 0 items>",
        &more,
    )
}
