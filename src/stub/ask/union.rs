//! The faults of a prompt of the wrong type, told as pydantic tells those of a union: for each of its types in turn, all that
//! speaks against it.
//!
//! Invariant: at most [`TOLD_MAX`] faults are told, the others counted.

use super::reader::Reader;
use super::values::{LIST, STRING, json};
use crate::stub::refusal::Refusal;
use crate::wire::json::Kind;

/// Faults that vLLM 0.32.0 tells before it only counts.
const TOLD_MAX: usize = 10;

/// Faults so far.
#[derive(Default)]
struct Faults {
    told: Vec<String>,
    param: Option<String>,
    count: usize,
}

impl Faults {
    fn add(&mut self, refusal: &Refusal) {
        self.count += 1;
        self.param = self.param.take().or_else(|| refusal.param.clone());
        if let Some((_, fault)) = refusal.message.split_once('\n')
            && self.told.len() < TOLD_MAX
        {
            self.told.push(format!("\n{fault}"));
        }
    }

    fn refusal(mut self) -> Refusal {
        let more = self.count - self.told.len();
        if more > 0 {
            self.told.push(format!("\n  ...and {more} more errors"));
        }
        let plural = if self.count == 1 { "" } else { "s" };
        Refusal {
            message: format!(
                "{} validation error{plural}:{}",
                self.count,
                self.told.concat()
            ),
            param: self.param,
            ..Refusal::media_type()
        }
    }
}

impl Reader<'_> {
    /// Why the value at the cursor is none of a list of ids, a list of such lists, a string, a list of strings.
    pub(super) fn prompt_faults(&mut self) -> Result<Refusal, Refusal> {
        const LOC: &str = "body.prompt";
        let mut faults = Faults::default();
        if self.peek()? != Kind::Array {
            for (fault, msg) in [
                ("list_type", LIST),
                ("list_type", LIST),
                ("string_type", STRING),
                ("list_type", LIST),
            ] {
                let before = self.cursor.clone();
                faults.add(&self.type_fault(fault, LOC, msg)?);
                self.cursor = before;
            }
            return Ok(faults.refusal());
        }
        self.each_item(&mut faults, |reader, i, faults| {
            if let Err(fault) = reader.prompt_id(&format!("{LOC}.{i}")) {
                faults.add(&fault);
            }
            Ok(())
        })?;
        self.each_item(&mut faults, |reader, i, faults| {
            let loc = format!("{LOC}.{i}");
            if reader.peek()? != Kind::Array {
                faults.add(&reader.type_fault("list_type", &loc, LIST)?);
                return Ok(());
            }
            reader.each_item(faults, |reader, j, faults| {
                if let Err(fault) = reader.prompt_id(&format!("{loc}.{j}")) {
                    faults.add(&fault);
                }
                Ok(())
            })
        })?;
        let before = self.cursor.clone();
        faults.add(&self.type_fault("string_type", LOC, STRING)?);
        self.cursor = before;
        self.each_item(&mut faults, |reader, i, faults| {
            if reader.peek()? != Kind::String {
                let loc = format!("{LOC}.{i}");
                faults.add(&reader.type_fault("string_type", &loc, STRING)?);
            }
            Ok(())
        })?;
        Ok(faults.refusal())
    }

    /// Looks at each item of the array at the cursor, which stays there.
    fn each_item(
        &mut self,
        faults: &mut Faults,
        look: impl Fn(&mut Self, usize, &mut Faults) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let start = self.cursor.clone();
        let mut walk = self.cursor.array().map_err(json)?;
        let mut i = 0;
        while self.cursor.item(&mut walk).map_err(json)? {
            let item = self.cursor.clone();
            look(self, i, faults)?;
            self.cursor = item;
            self.cursor.skip().map_err(json)?;
            i += 1;
        }
        self.cursor = start;
        Ok(())
    }
}
