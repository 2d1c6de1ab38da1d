//! What callers must know to be let in: the keys of clients (`runtime.api_keys_file`) and the one of operators (`runtime.admin_key_file`).
//!
//! Nothing here holds a key, only its SHA-256. Keys are random and long, so the hash needs neither salt nor stretching: who reads the
//! file of client keys, or this process's memory, learns no key. Comparing takes the same time wherever the first difference lies.
//!
//! [`ApiKeys::parse`] is pure; the two `load`s read a file. No message repeats what stands in one: it may be a key.

use std::fmt;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::fault::Faults;
use super::{ConfigError, Errors};

/// The SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Digest([u8; 32]);

impl Digest {
    fn of(key: &[u8]) -> Digest {
        Digest(Sha256::digest(key).into())
    }

    /// Without a branch on what differs.
    fn same(&self, other: &Digest) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let different = pairs.fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
        std::hint::black_box(different) == 0
    }

    /// What the list of them is searched by. How long a search takes may tell some bits of a hash that stands in the file, which
    /// nobody can turn into a key.
    fn front(&self) -> &[u8] {
        &self.0[..8]
    }
}

/// The keys that open `/v1/*`. At least one.
pub struct ApiKeys(Vec<Digest>);

impl ApiKeys {
    /// Reads the file of client keys.
    pub fn load(path: &Path) -> Result<ApiKeys, Errors> {
        let file = path.display().to_string();
        let text = String::from_utf8(super::read(path)?)
            .map_err(|_| Errors::of_file(&file, "is not UTF-8"))?;
        ApiKeys::parse(&file, &text)
    }

    /// A line is the hash of a key as `sha256sum` prints it: 64 hex digits, `sha256:` before them or not, and behind white space
    /// whatever the key is called. Blank lines, and lines that begin with `#`, say nothing. `file` is only its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<ApiKeys, Errors> {
        let mut faults = Faults::new(file, text);
        let mut digests = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let said = line.trim();
            if !said.is_empty() && !said.starts_with('#') {
                match digest(said) {
                    Some(digest) => digests.push(digest),
                    None => expect_hash(faults.add(at, "", "not the hash of a key")),
                }
            }
            at += line.len();
        }
        if !faults.is_empty() {
            return Err(faults.into_errors());
        }
        if digests.is_empty() {
            let what = "holds no key, so nobody could use /v1/*";
            return Err(Errors::of_file(file, what));
        }
        digests.sort_unstable();
        digests.dedup();
        Ok(ApiKeys(digests))
    }

    /// Whether `given` is one of them.
    pub fn open_to(&self, given: &[u8]) -> bool {
        let given = Digest::of(given);
        let at = self.0.partition_point(|ours| ours.front() < given.front());
        let like = self.0[at..]
            .iter()
            .take_while(|d| d.front() == given.front());
        // All of the few that begin alike are looked at.
        like.fold(false, |found, ours| found | ours.same(&given))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.count())
    }
}

fn digest(line: &str) -> Option<Digest> {
    let hex = line.split_ascii_whitespace().next()?;
    let hex = hex.strip_prefix("sha256:").unwrap_or(hex).as_bytes();
    if hex.len() != 64 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(Digest(bytes))
}

fn expect_hash(fault: &mut ConfigError) {
    fault.allowed = "64 hex digits, as of `printf %s KEY | sha256sum`".to_owned();
}

/// The content of `runtime.admin_key_file`, without surrounding white space.
pub struct AdminKey(Digest);

impl AdminKey {
    /// `None` when nothing is left: an empty key would let everyone in.
    pub fn new(content: &[u8]) -> Option<AdminKey> {
        let key = content.trim_ascii();
        (!key.is_empty()).then(|| AdminKey(Digest::of(key)))
    }

    pub fn load(path: &Path) -> Result<AdminKey, Errors> {
        let empty = || Errors::of_file(&path.display().to_string(), "the admin key is empty");
        AdminKey::new(&super::read(path)?).ok_or_else(empty)
    }

    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.same(&Digest::of(given))
    }
}

#[doc(hidden)]
pub mod fuzzing {
    use super::{ApiKeys, Digest};

    /// Any text: keys or faults, no panic. As many keys as there are different hashes, and no fault repeats a word of the file.
    pub fn fuzz(data: &[u8]) {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        match ApiKeys::parse("f", text) {
            Ok(keys) => {
                assert!(keys.count() <= text.lines().count());
                assert!(keys.0.is_sorted_by(|a, b| a < b));
                for ours in &keys.0 {
                    assert!(keys.0.iter().filter(|other| ours.same(other)).count() == 1);
                }
                assert_eq!(keys.open_to(data), keys.0.contains(&Digest::of(data)));
            }
            Err(errors) => assert!(errors.to_string().is_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // As sha256sum 9.1 prints them for `k1` and `k2`.
    const K1: &str = "6ab9f1eb8f7d3388f4f9d586f66e99fd54080df2c446f0e58668b09c08a16dd0";
    const K2: &str = "015f7e6bc5aeaf483724089e9252cc13b50951a6b69412522765cff4d780306e";

    // proves R-HTTP-6
    #[test]
    fn keys_by_their_hashes() {
        let text = format!(
            "# clients\n\n{K2}  -\r\n  sha256:{}\tteam a, laptop\n{K1} again\n",
            K1.to_uppercase()
        );
        let keys = ApiKeys::parse("keys", &text).unwrap();
        assert_eq!(keys.count(), 2);
        for (given, open) in [
            ("k1", true),
            ("k2", true),
            ("k", false),
            ("k1 ", false),
            ("", false),
            // The hash is no key.
            (K1, false),
        ] {
            assert_eq!(keys.open_to(given.as_bytes()), open, "{given:?}");
        }
    }

    #[test]
    fn keys_among_many() {
        let name = |i: usize| format!("key {i}");
        let hash = |i| {
            Digest::of(name(i).as_bytes())
                .0
                .map(|byte| format!("{byte:02x}"))
        };
        let text: Vec<_> = (0..500).map(|i| hash(2 * i).concat()).collect();
        let keys = ApiKeys::parse("keys", &text.join("\n")).unwrap();
        for i in 0..1000 {
            assert_eq!(keys.open_to(name(i).as_bytes()), i % 2 == 0, "{i}");
        }
    }

    #[test]
    fn files_that_hold_no_keys() {
        let short = &K1[1..];
        let rows = [
            ("", "keys: holds no key, so nobody could use /v1/*"),
            ("# later\n", "keys: holds no key, so nobody could use /v1/*"),
            ("sk-secret", "keys:1:1: not the hash of a key"),
            (
                &format!("{K2}\nsk-secret"),
                "keys:2:1: not the hash of a key",
            ),
            (short, "keys:1:1: not the hash of a key"),
            (&format!("{short}g"), "keys:1:1: not the hash of a key"),
            (&format!("sha512:{K1}"), "keys:1:1: not the hash of a key"),
        ];
        for (text, begins) in rows {
            let errors = ApiKeys::parse("keys", text)
                .expect_err("a fault")
                .to_string();
            assert!(errors.starts_with(begins), "{text:?}: {errors}");
            assert!(!errors.contains("secret"), "{errors}");
        }
    }

    #[test]
    fn digests_compare_whole() {
        let digest = Digest::of(b"k");
        assert!(digest.same(&digest));
        for i in 0..32 {
            let mut other = digest;
            other.0[i] ^= 1;
            assert!(!digest.same(&other), "byte {i}");
        }
    }

    #[test]
    fn the_operators_key() {
        let key = AdminKey::new(b" abc\r\n").unwrap();
        for (given, same) in [
            ("abc", true),
            ("ab", false),
            ("abcd", false),
            ("abcabc", false),
            ("abd", false),
            ("", false),
        ] {
            assert_eq!(key.matches(given.as_bytes()), same, "{given}");
        }
        assert!(AdminKey::new(b" \n").is_none());
    }

    #[test]
    fn any_text() {
        let seeds = [
            &b""[..],
            b"# x",
            K1.as_bytes(),
            b"\xff",
            b"sha256:\n\xc3\xa9",
        ];
        seeds.into_iter().for_each(fuzzing::fuzz);
    }
}
