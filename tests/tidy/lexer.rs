//! Rust text to lines whose code, comments and strings are told apart. A lexer, not a parser: it knows comments (nested
//! too), strings of every prefix, characters and lifetimes, and that is enough for rules about words.
//!
//! Owns nothing. Invariant: every line of the text is one [`Line`], and `code` holds no byte of a comment or of a string.

/// One line of a Rust file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub raw: String,
    /// Without comments; each string that begins here stands as `""`.
    pub code: String,
    /// Text of the comments, without their slashes; `!` of an inner doc comment is kept.
    pub comment: String,
    /// Contents of the strings that begin here, escapes as written, in order.
    pub strings: Vec<String>,
    /// Part of a test, or of a body that only tests and fuzz targets run.
    pub test: bool,
}

/// Splits a whole file.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lexer = Lexer {
        chars: text.chars().collect(),
        at: 0,
        lines: text.lines().map(Line::of).collect(),
        line: 0,
    };
    lexer.run();
    lexer.lines
}

impl Line {
    fn of(raw: &str) -> Line {
        Line {
            raw: raw.to_string(),
            ..Line::default()
        }
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    lines: Vec<Line>,
    line: usize,
}

impl Lexer {
    fn run(&mut self) {
        while let Some(c) = self.peek(0) {
            match c {
                '/' if self.peek(1) == Some('/') => self.line_comment(),
                '/' if self.peek(1) == Some('*') => self.block_comment(),
                '"' => self.string(),
                'r' | 'b' | 'c' if !self.after_word() && self.prefixed_string() => {}
                '\'' => self.quote(),
                _ => {
                    self.code(c);
                    self.step();
                }
            }
        }
    }

    fn line_comment(&mut self) {
        self.at += 2;
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            if self.starts("/*") {
                depth += 1;
                self.at += 2;
            } else if self.starts("*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.comment();
            }
        }
    }

    /// From the opening quote on.
    fn string(&mut self) {
        self.step();
        let (line, mut text) = (self.line, String::new());
        while let Some(c) = self.peek(0) {
            if c == '"' {
                self.step();
                break;
            }
            if c == '\\' {
                text.push(c);
                self.step();
            }
            if let Some(c) = self.peek(0) {
                text.push(c);
                self.step();
            }
        }
        self.keep_string(line, text);
    }

    /// `r"…"`, `br#"…"#`, `b"…"`, `c"…"`, and raw identifiers. False when it is none of them.
    fn prefixed_string(&mut self) -> bool {
        let word: String = (0..2)
            .map_while(|i| self.peek(i).filter(char::is_ascii_alphabetic))
            .collect();
        let raw = word.ends_with('r');
        let hashes = (0..)
            .take_while(|i| raw && self.peek(word.len() + i) == Some('#'))
            .count();
        if self.peek(word.len() + hashes) != Some('"')
            || !["r", "b", "c", "br", "cr"].contains(&word.as_str())
        {
            return false;
        }
        self.at += word.len() + hashes;
        if !raw {
            self.string();
            return true;
        }
        let end = format!("\"{}", "#".repeat(hashes));
        self.step();
        let (line, mut text) = (self.line, String::new());
        while let Some(c) = self.peek(0).filter(|_| !self.starts(&end)) {
            text.push(c);
            self.step();
        }
        self.at += end.len();
        self.keep_string(line, text);
        true
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            self.code('\'');
            return self.step();
        }
        self.at += if escaped { 3 } else { 2 };
        while self.peek(0).is_some_and(|c| c != '\'') {
            self.step();
        }
        self.step();
        self.code('\'');
        self.code('\'');
    }

    fn keep_string(&mut self, line: usize, text: String) {
        self.lines[line].strings.push(text);
        self.lines[line].code.push_str("\"\"");
    }

    fn comment(&mut self) {
        if let Some(c) = self.peek(0).filter(|c| *c != '\n') {
            self.lines[self.line].comment.push(c);
        }
        self.step();
    }

    fn code(&mut self, c: char) {
        if c != '\n' {
            self.lines[self.line].code.push(c);
        }
    }

    fn step(&mut self) {
        if self.peek(0) == Some('\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(i, c)| self.peek(i) == Some(c))
    }

    /// Whether the character before belongs to a name.
    fn after_word(&self) -> bool {
        self.at > 0 && is_word(self.chars[self.at - 1])
    }
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Byte offsets where `word` stands in `text` by itself, not as part of a longer name.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            let cut = |edge: Option<char>, side: Option<char>| {
                !edge.is_some_and(is_word) || !side.is_some_and(is_word)
            };
            cut(word.chars().next(), before) && cut(word.chars().next_back(), after)
        })
}

#[test]
fn code_comments_and_strings_are_told_apart() {
    let rows: &[(&str, &str, &str, &[&str])] = &[
        ("let a = 1; // one", "let a = 1; ", " one", &[]),
        (
            r#"f("a // b", "c\"d");"#,
            r#"f("", "");"#,
            "",
            &["a // b", r#"c\"d"#],
        ),
        (
            r###"f(br#"a"b"#, r"\");"###,
            r#"f("", "");"#,
            "",
            &["a\"b", "\\"],
        ),
        ("a /* x /* y */ z */ b", "a  b", " x  y  z ", &[]),
        (
            "let c: &'a str = '\"'; b'\\'' '\\u{1}'",
            "let c: &'a str = ''; b'' ''",
            "",
            &[],
        ),
        (
            "for r in raw { bar(r#type) }",
            "for r in raw { bar(r#type) }",
            "",
            &[],
        ),
        ("//! head", "", "! head", &[]),
    ];
    for (text, code, comment, strings) in rows {
        let got = lines(text);
        assert_eq!(got.len(), 1, "{text}");
        assert_eq!(
            (got[0].code.as_str(), got[0].comment.as_str()),
            (*code, *comment),
            "{text}"
        );
        assert_eq!(got[0].strings, *strings, "{text}");
    }
}

#[test]
fn what_runs_over_lines_stays_on_them() {
    let got = lines("a(\"x\ny\", 1);\n/* p\nq */ b\nc\n");
    let code: Vec<&str> = got.iter().map(|l| l.code.as_str()).collect();
    assert_eq!(code, ["a(\"\"", ", 1);", "", " b", "c"]);
    assert_eq!(got[0].strings, ["x\ny"]);
    assert_eq!(
        (got[2].comment.as_str(), got[3].comment.as_str()),
        (" p", "q ")
    );
}

#[test]
fn words_stand_alone() {
    assert_eq!(
        words("unsafe_code unsafe {", "unsafe").collect::<Vec<_>>(),
        [12]
    );
    assert_eq!(words("dbg!(x) adbg!(y)", "dbg!").collect::<Vec<_>>(), [0]);
}
