//! Properties of heads for any bytes: how they were cut into reads changes nothing, and what is accepted cannot be read in
//! two ways by the plainest reader of lines.

use super::*;

/// The first byte chooses the limits; the rest is a client's.
pub fn request(data: &[u8]) {
    let Some((tight, bytes)) = data.split_first() else {
        return;
    };
    let limits = limits(*tight);
    let whole = parse_request(bytes, &mut 0, &limits);
    assert_eq!(whole, grown(bytes, &limits, parse_request), "cut");
    let Ok(Some(head)) = whole else { return };
    let text = plain(&bytes[..head.head_bytes], &limits);
    assert!(head.path.start < head.path.end && head.path.end <= head.head_bytes);
    let path = &bytes[head.path];
    assert!(!path.iter().any(|byte| b"?# \r\n".contains(byte)));
    assert!(text.hosts <= 1 && (text.hosts == 1 || head.version == Version::Http10));
    assert_eq!(
        text.lengths == 1,
        matches!(head.body, RequestBody::Length(_))
    );
    assert_eq!(text.codings == 1, head.body == RequestBody::Chunked);
}

/// The first byte chooses the limits; the rest is an engine's.
pub fn response(data: &[u8]) {
    let Some((tight, bytes)) = data.split_first() else {
        return;
    };
    let limits = limits(*tight);
    let whole = parse_response(bytes, &mut 0, &limits);
    assert_eq!(whole, grown(bytes, &limits, parse_response), "cut");
    let Ok(Some(head)) = whole else { return };
    let text = plain(&bytes[..head.head_bytes], &limits);
    if head.body != ResponseBody::None {
        assert_eq!(
            text.lengths == 1,
            matches!(head.body, ResponseBody::Length(_))
        );
        assert_eq!(text.codings == 1, head.body == ResponseBody::Chunked);
    }
}

fn limits(tight: u8) -> HeadLimits {
    HeadLimits {
        bytes_max: if tight & 1 == 0 { 4096 } else { 64 },
        fields_max: if tight & 2 == 0 { 100 } else { 2 },
    }
}

type Parse<T> = fn(&[u8], &mut usize, &HeadLimits) -> Result<Option<T>, HeadFault>;

/// The first answer that is not "more", with one byte more each time.
fn grown<T>(bytes: &[u8], limits: &HeadLimits, parse: Parse<T>) -> Result<Option<T>, HeadFault> {
    let mut scanned = 0;
    for end in 0..=bytes.len() {
        match parse(&bytes[..end], &mut scanned, limits) {
            Ok(None) => {}
            told => return told,
        }
    }
    Ok(None)
}

/// What matters of an accepted head, found by splitting it at its line ends.
struct Plain {
    hosts: usize,
    lengths: usize,
    codings: usize,
}

fn plain(head: &[u8], limits: &HeadLimits) -> Plain {
    assert!(head.len() <= limits.bytes_max);
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let text = text.strip_prefix("\r\n").unwrap_or(&text);
    let mut lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines.pop(), Some(""), "the last line end");
    assert_eq!(lines.pop(), Some(""), "the blank line");
    assert!(lines.len() <= limits.fields_max + 1);
    let mut plain = Plain {
        hosts: 0,
        lengths: 0,
        codings: 0,
    };
    for line in &lines {
        assert!(!line.is_empty());
        assert!(
            line.chars().all(|c| c == '\t' || c >= ' ' && c != '\x7f'),
            "{line:?}"
        );
    }
    for line in &lines[1..] {
        let (name, value) = line.split_once(':').expect("an accepted line has a colon");
        assert!(!name.is_empty() && name.bytes().all(is_token), "{name:?}");
        assert!(field(head, name).is_some(), "{name:?}");
        match name {
            "host" => plain.hosts += 1,
            "content-length" => {
                plain.lengths += 1;
                assert!(value.trim().bytes().all(|byte| byte.is_ascii_digit()));
            }
            "transfer-encoding" => {
                plain.codings += 1;
                assert_eq!(value.trim(), "chunked");
            }
            _ => {}
        }
    }
    assert!(plain.lengths + plain.codings <= 1);
    assert_eq!(fields(head).count(), lines.len() - 1);
    plain
}
