//! Faults of a fleet file: where, which key, what was found, what is allowed. It owns the wording and the order.
//! Pure; std only. Invariant: one fault is one line of text, whatever the file holds.

use std::fmt;

/// One fault. Empty members are left out of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigError {
    pub file: String,
    /// From 1; 0 when the fault has no place (a file that cannot be read).
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Path of the key, such as `engines[2].url`.
    pub key: String,
    pub what: String,
    pub found: String,
    pub allowed: String,
    pub unit: &'static str,
    pub hint: String,
}

/// All faults of a file at once, in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<ConfigError>);

/// Collects faults and knows the text they stand in.
pub(crate) struct Faults<'a> {
    file: &'a str,
    text: &'a str,
    line_starts: Vec<usize>,
    list: Vec<(usize, ConfigError)>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", line(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", line(&self.key))?;
        }
        write!(f, ": {}", line(&self.what))?;
        if !self.found.is_empty() {
            write!(f, ", found {}", line(&self.found))?;
        }
        if !self.allowed.is_empty() {
            write!(f, ", allowed {}", line(&self.allowed))?;
            if !self.unit.is_empty() {
                write!(f, " {}", self.unit)?;
            }
        }
        if !self.hint.is_empty() {
            write!(f, "; {}", line(&self.hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

impl Errors {
    /// A fault of the file as a whole.
    pub(crate) fn of_file(file: &str, what: impl Into<String>) -> Self {
        Errors(vec![ConfigError {
            file: file.to_owned(),
            what: what.into(),
            ..ConfigError::default()
        }])
    }
}

impl<'a> Faults<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(i, _)| i + 1))
            .collect();
        Faults {
            file,
            text,
            line_starts,
            list: Vec::new(),
        }
    }

    /// Notes a fault at byte `at`; the caller fills in the rest. Past the bound the last one is overwritten.
    pub fn add(&mut self, at: usize, key: &str, what: impl Into<String>) -> &mut ConfigError {
        if self.list.len() > FAULTS_MAX {
            self.list.pop();
        }
        let (line, column) = self.place(at);
        let error = ConfigError {
            file: self.file.to_owned(),
            line,
            column,
            key: key.to_owned(),
            what: what.into(),
            ..ConfigError::default()
        };
        let i = self.list.len();
        self.list.push((at, error));
        &mut self.list[i].1
    }

    pub fn line(&self, at: usize) -> usize {
        self.place(at).0
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn into_errors(mut self) -> Errors {
        let more = self.list.len() > FAULTS_MAX;
        self.list.truncate(FAULTS_MAX);
        self.list.sort_by_key(|(at, _)| *at);
        let mut errors: Vec<ConfigError> = self.list.into_iter().map(|(_, e)| e).collect();
        if more {
            errors.extend(Errors::of_file(self.file, "more faults follow; mend these first").0);
        }
        Errors(errors)
    }

    fn place(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at);
        // The first start is 0, so at least one start is ≤ `at`.
        let start = self.line_starts[line - 1];
        let before = self.text.as_bytes().get(start..at).unwrap_or(&[]);
        // Every byte that is not a continuation byte begins a character.
        let chars = before.iter().filter(|b| (**b as i8) >= -0x40).count();
        (line, chars + 1)
    }
}

/// Text without anything that could break the line or the terminal, cut where it is long.
fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (i, ch) in text.chars().enumerate() {
        if i == SHOWN_MAX {
            out.push('…');
            break;
        }
        if ch.is_control() || matches!(ch, '\u{2028}' | '\u{2029}' | '\u{200e}'..='\u{202e}') {
            out.extend(ch.escape_default());
        } else {
            out.push(ch);
        }
    }
    out
}

/// Characters shown of a name or a value: a file may hold longer ones, nobody reads them.
const SHOWN_MAX: usize = 400;

/// More faults than this help nobody, and each costs a walk over its line.
const FAULTS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_from_one() {
        let f = Faults::new("f", "ab\né\u{1f600}x\r\n");
        for (at, want) in [
            (0, (1, 1)),
            (2, (1, 3)),
            (3, (2, 1)),
            (5, (2, 2)),
            (9, (2, 3)),
        ] {
            assert_eq!(f.place(at), want, "{at}");
        }
        assert_eq!(f.place(12), (3, 1));
        assert_eq!(f.place(usize::MAX), (3, 1));
    }

    #[test]
    fn a_fault_is_one_line() {
        let mut f = Faults::new("a\nb", "x");
        let e = f.add(0, "k\u{1b}[31m", "bad\nthing");
        e.found = "\"\r\"".into();
        let text = f.into_errors().to_string();
        assert_eq!(text, "a\\nb:1:1: k\\u{1b}[31m: bad\\nthing, found \"\\r\"");
    }

    #[test]
    fn faults_are_bounded_and_in_file_order() {
        let text = "\n".repeat(1000);
        let mut f = Faults::new("f", &text);
        for at in (0..500).rev() {
            f.add(at, "k", "w");
        }
        let errors = f.into_errors().0;
        assert_eq!(errors.len(), FAULTS_MAX + 1);
        assert!(errors.windows(2).take(99).all(|w| w[0].line < w[1].line));
        assert_eq!(
            errors[FAULTS_MAX].to_string(),
            "f: more faults follow; mend these first"
        );
    }
}
