//! The body decoder against the plainest one: lines found by searching, checked as strings, payload copied.

use super::*;

/// What came of feeding a decoder.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done { payload: Vec<u8>, used: usize },
    Wait { payload: Vec<u8> },
    Fault(BodyFault),
}

/// The first byte chooses the framing, the second how the input is cut; the rest is the peer's.
pub fn fuzz(data: &[u8]) {
    let [framing, cut, input @ ..] = data else {
        return;
    };
    let body = match framing % 8 {
        0 => ResponseBody::None,
        1 => ResponseBody::UntilClose,
        2 => ResponseBody::Length(u64::from(framing >> 3)),
        _ => ResponseBody::Chunked,
    };
    let whole = decode(body, input, input.len());
    assert_eq!(decode(body, input, 1), whole, "byte by byte");
    assert_eq!(decode(body, input, usize::from(*cut)), whole, "cut");
    match (plain(body, input), whole) {
        // A decoder that sees each byte may know that a line is bad before its end is there.
        (Some(Outcome::Wait { .. }) | None, Outcome::Fault(_)) => {}
        (expected, whole) => assert_eq!(expected, Some(whole), "oracle"),
    }
}

/// Feeds a fresh decoder in reads of `step` bytes.
pub fn decode(body: ResponseBody, input: &[u8], step: usize) -> Outcome {
    let mut decoder = BodyDecoder::response(body);
    let (mut payload, mut at) = (Vec::new(), 0);
    let mut end = 0;
    loop {
        let read = &input[at..end];
        let told = decoder.next(read);
        match told {
            Ok(Step::Piece { data, used }) => {
                assert!(data.start < data.end && data.end <= used && used <= read.len());
                payload.extend_from_slice(&read[data]);
                at += used;
            }
            Ok(Step::More { used }) => {
                assert!(used == read.len() && !decoder.ended());
                at += used;
                if end == input.len() {
                    assert_eq!(decoder.eof().is_ok(), body == ResponseBody::UntilClose);
                    return Outcome::Wait { payload };
                }
                end = (end + step.max(1)).min(input.len());
            }
            Ok(Step::End { used }) => {
                at += used;
                assert!(decoder.ended() && decoder.eof().is_ok());
                assert_eq!(decoder.next(&input[at..]), Ok(Step::End { used: 0 }));
                return Outcome::Done { payload, used: at };
            }
            Err(fault) => {
                assert_eq!(decoder.next(&input[at..]), Err(fault), "a fault stays");
                assert_eq!(decoder.eof(), Err(fault));
                return Outcome::Fault(fault);
            }
        }
    }
}

/// `None` for a fault, whichever.
fn plain(body: ResponseBody, input: &[u8]) -> Option<Outcome> {
    let length = match body {
        ResponseBody::None => 0,
        ResponseBody::Length(length) => length as usize,
        ResponseBody::UntilClose => usize::MAX,
        ResponseBody::Chunked => return plain_chunked(input),
    };
    let payload = input[..input.len().min(length)].to_vec();
    Some(match payload.len() == length {
        true => Outcome::Done {
            payload,
            used: length,
        },
        false => Outcome::Wait { payload },
    })
}

fn plain_chunked(input: &[u8]) -> Option<Outcome> {
    let (mut rest, mut payload) = (input, Vec::new());
    loop {
        let Some((line, behind)) = split_line(rest) else {
            return Some(Outcome::Wait { payload });
        };
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let text = std::str::from_utf8(&line[..digits]).ok()?;
        let size = u64::from_str_radix(text, 16).ok()?;
        if digits > 16
            || line.len() + 2 > limits::CHUNK_LINE_BYTES_MAX
            || !plain_extensions(&line[digits..])
        {
            return None;
        }
        if size == 0 {
            return plain_trailers(input, behind, payload);
        }
        let take = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(behind.len());
        payload.extend_from_slice(&behind[..take]);
        rest = match &behind[take..] {
            _ if (take as u64) < size => return Some(Outcome::Wait { payload }),
            [] | [b'\r'] => return Some(Outcome::Wait { payload }),
            [b'\r', b'\n', rest @ ..] => rest,
            _ => return None,
        };
    }
}

fn plain_trailers(input: &[u8], section: &[u8], payload: Vec<u8>) -> Option<Outcome> {
    let mut rest = section;
    loop {
        let Some((line, behind)) = split_line(rest) else {
            return Some(Outcome::Wait { payload });
        };
        rest = behind;
        if section.len() - rest.len() > limits::TRAILER_BYTES_MAX {
            return None;
        }
        if line.is_empty() {
            let used = input.len() - rest.len();
            return Some(Outcome::Done { payload, used });
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return None;
        }
        if !value.iter().all(|byte| is_field_byte(*byte)) {
            return None;
        }
    }
}

fn plain_extensions(mut text: &[u8]) -> bool {
    while !text.is_empty() {
        let [b';', rest @ ..] = blank(text) else {
            return false;
        };
        let Some(rest) = word(blank(rest)) else {
            return false;
        };
        let [b'=', value @ ..] = blank(rest) else {
            text = rest;
            continue;
        };
        let behind = match blank(value) {
            [b'"', quoted @ ..] => quoted_end(quoted),
            value => word(value),
        };
        let Some(behind) = behind else {
            return false;
        };
        text = behind;
    }
    true
}

fn quoted_end(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] if is_field_byte(*byte) => rest,
            _ => return None,
        };
    }
}

fn word(text: &[u8]) -> Option<&[u8]> {
    let length = text.iter().take_while(|byte| is_token(**byte)).count();
    (length > 0).then(|| &text[length..])
}

fn blank(text: &[u8]) -> &[u8] {
    let length = text.iter().take_while(|byte| b" \t".contains(byte)).count();
    &text[length..]
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&text[..at], &text[at + 2..]))
}
