//! What engine and load client of the performance suite agree on: one clock, and the text of a token that tells who it is.
//!
//! A token's text is a space and 24 hexadecimal digits: its number in the answer (4), the tag of its request (8, the first id of the
//! prompt), and when it was written (12, nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share). So the client sees an
//! event that is lost, doubled, late or somebody else's, and how long it was under way. Invariant: [`put`] and [`read`] are inverse.

/// Bytes of a token's text.
pub const TEXT_BYTES: usize = 1 + NUMBER + TAG + TIME;
/// Where the parts that change from event to event lie in it.
const NUMBER_AT: usize = 1;
const TIME_AT: usize = 1 + NUMBER + TAG;

const NUMBER: usize = 4;
const TAG: usize = 8;
const TIME: usize = 12;
const TIME_MASK: u64 = (1 << (4 * TIME)) - 1;

/// What a token's text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub number: u64,
    pub tag: u64,
    pub written_ns: u64,
}

/// Appends a token's text.
pub fn put(stamp: Stamp, out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + TEXT_BYTES, b' ');
    hex(&mut out[at + NUMBER_AT..][..NUMBER], stamp.number);
    hex(&mut out[at + NUMBER_AT + NUMBER..][..TAG], stamp.tag);
    hex(&mut out[at + TIME_AT..][..TIME], stamp.written_ns);
}

/// Writes number and time anew, where the text lies at `at`.
pub fn patch(out: &mut [u8], at: usize, number: u64, written_ns: u64) {
    hex(&mut out[at + NUMBER_AT..][..NUMBER], number);
    hex(&mut out[at + TIME_AT..][..TIME], written_ns);
}

/// Reads the text that `bytes` begin with.
pub fn read(bytes: &[u8]) -> Option<Stamp> {
    let text = bytes.get(..TEXT_BYTES)?;
    let (space, digits) = text.split_first()?;
    let (number, digits) = digits.split_at(NUMBER);
    let (tag, time) = digits.split_at(TAG);
    (*space == b' ').then_some(())?;
    Some(Stamp {
        number: number_of(number)?,
        tag: number_of(tag)?,
        written_ns: number_of(time)?,
    })
}

/// Nanoseconds from when a token was written to `now_ns`; zero when it comes from the future.
pub fn since(written_ns: u64, now_ns: u64) -> u64 {
    let passed = (now_ns & TIME_MASK).wrapping_sub(written_ns) & TIME_MASK;
    if passed > TIME_MASK / 2 { 0 } else { passed }
}

/// CLOCK_MONOTONIC.
#[expect(unsafe_code, reason = "std has no clock that two processes share")]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec, to a live local; a clock that every Linux has cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn hex(out: &mut [u8], value: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut left = value;
    for digit in out.iter_mut().rev() {
        *digit = DIGITS[(left & 15) as usize];
        left >>= 4;
    }
}

fn number_of(digits: &[u8]) -> Option<u64> {
    let mut value = 0;
    for digit in digits {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

#[test]
fn a_text_says_what_was_put() {
    let stamp = Stamp {
        number: 0xabc,
        tag: 1_000_007,
        written_ns: 0x1234_5678_9abc,
    };
    let mut out = b"text:".to_vec();
    put(stamp, &mut out);
    assert_eq!(read(&out[5..]), Some(stamp));
    patch(&mut out, 5, 7, 9);
    let patched = Stamp {
        number: 7,
        written_ns: 9,
        ..stamp
    };
    assert_eq!(read(&out[5..]), Some(patched));
    assert_eq!(read(&out[5..out.len() - 1]), None);
    assert_eq!(read(b" 000g0000000000000000000"), None);
    assert_eq!((since(5, 7), since(7, 5)), (2, 0));
    assert_eq!(since(TIME_MASK, (3 << 48) + 1), 2);
}
