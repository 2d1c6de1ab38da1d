//! What we write, byte for byte, and read back by our own strict readers.

use proptest::prelude::*;

use super::*;
use crate::wire::h1::body::fuzzing::{Outcome, decode};
use crate::wire::h1::head::{self, HeadLimits, ResponseBody};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

// proves R-HTTP-1, R-HTTP-4
#[test]
fn heads_of_answers() {
    let fields: &[(&str, &[u8])] = &[
        ("content-type", b"application/json"),
        ("x-request-id", b"r-1"),
    ];
    let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
    let rows = [
        (
            written(|out| response_head(out, 200, fields, Framing::Length(12), false, Some(date))),
            "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-type: application/json\r\nx-request-id: r-1\r\n\
             content-length: 12\r\n\r\n",
        ),
        (
            written(|out| response_head(out, 200, &[], Framing::Chunked, false, None)),
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
        (
            written(|out| response_head(out, 431, &[], Framing::Length(0), true, None)),
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ),
        (
            written(|out| response_head(out, 204, &[], Framing::None, false, None)),
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            written(|out| response_head(out, 200, &[], Framing::UntilClose, false, None)),
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
        ),
        (
            written(|out| response_head(out, 599, &[], Framing::Length(u64::MAX), false, None)),
            "HTTP/1.1 599 Unknown\r\ncontent-length: 18446744073709551615\r\n\r\n",
        ),
    ];
    for (got, want) in rows {
        assert_eq!(got, want);
    }
}

#[test]
fn heads_of_requests() {
    let fields: &[(&str, &[u8])] = &[("accept-encoding", b"identity")];
    let rows = [
        (
            written(|out| request_head(out, "POST", "/p/v1/x", "h:80", fields, Some(7))),
            "POST /p/v1/x HTTP/1.1\r\nhost: h:80\r\naccept-encoding: identity\r\ncontent-length: 7\r\n\r\n",
        ),
        (
            written(|out| request_head(out, "GET", "/health", "[::1]", &[], None)),
            "GET /health HTTP/1.1\r\nhost: [::1]\r\n\r\n",
        ),
    ];
    for (got, want) in rows {
        assert_eq!(got, want);
    }
}

// proves R-HTTP-2, R-HTTP-4
#[test]
fn fields_that_cannot_be_written() {
    let rows: &[(&str, &[u8], bool)] = &[
        ("x", b"", true),
        ("x", b"a b\tc\xff", true),
        ("traceparent", b"00-ab-cd-01", true),
        ("x", b"a\r\nset-cookie: b", false),
        ("x", b"a\rb", false),
        ("x", b"a\nb", false),
        ("x", b"a\0b", false),
        ("x", b"a\x7f", false),
        ("x: a\r\ny", b"b", false),
        ("x ", b"b", false),
        ("", b"b", false),
        ("Content-Length", b"1", false),
        ("transfer-encoding", b"chunked", false),
        ("Connection", b"close", false),
        ("host", b"r", false),
        ("date", b"today", false),
    ];
    for (name, value, want) in rows {
        assert_eq!(is_writable(name, value), *want, "{name:?}: {value:?}");
        // The debug assertion would stop the test before the field is left out.
        if *want || !cfg!(debug_assertions) {
            let head =
                written(|out| response_head(out, 200, &[(name, b"v")], Framing::None, false, None));
            assert_eq!(head.contains(&format!("\r\n{name}: v\r\n")), *want);
        }
    }
}

#[test]
fn chunks() {
    let chunk = |before: &[u8], data: &[u8]| {
        let mut out = before.to_vec();
        let mark = chunk_begin(&mut out);
        assert_eq!(out.len(), mark + CHUNK_HEAD);
        out.extend_from_slice(data);
        let skip = chunk_seal(&mut out, mark);
        String::from_utf8(out.split_off(skip)).unwrap()
    };
    assert_eq!(chunk(b"", b"a"), "1\r\na\r\n");
    assert_eq!(
        chunk(b"", &[b'x'; 0x1af]),
        format!("1af\r\n{}\r\n", "x".repeat(0x1af))
    );
    assert_eq!(
        chunk(b"H\r\n\r\n", b"hello"),
        "H\r\n\r\n00000005\r\nhello\r\n"
    );
    assert_eq!(chunk(b"", b""), "", "an empty chunk would end the body");
    assert_eq!(chunk(b"H", b""), "H");
    // Two in one buffer: only the first can have unused room.
    let mut out = Vec::new();
    let mut skip = 0;
    for data in [b"ab", b"cd"] {
        let mark = chunk_begin(&mut out);
        out.extend_from_slice(data);
        skip += chunk_seal(&mut out, mark);
    }
    out.extend_from_slice(LAST_CHUNK);
    assert_eq!(&out[skip..], b"2\r\nab\r\n00000002\r\ncd\r\n0\r\n\r\n");
}

#[test]
fn a_chunk_that_outgrows_its_room() {
    for (before, want) in [("", "1af\r\n"), ("H", "H1af\r\n")] {
        let mut out = before.as_bytes().to_vec();
        let mark = begin::<1>(&mut out);
        out.resize(out.len() + 0x1af, b'x');
        let skip = seal::<1>(&mut out, mark);
        assert_eq!(skip, 0);
        let want = format!("{want}{}\r\n", "x".repeat(0x1af));
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}

#[test]
fn dates() {
    let rows = [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
        (1_795_992_886, "Sun, 29 Nov 2026 22:54:46 GMT"),
        (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
        (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
        (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        (LAST_SECOND, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ];
    for (seconds, want) in rows {
        assert_eq!(
            std::str::from_utf8(&http_date(seconds)).unwrap(),
            want,
            "{seconds}"
        );
    }
}

/// Day after day by the calendar's own rule, against the arithmetic.
#[test]
fn dates_agree_with_counting() {
    let (mut year, mut month, mut day) = (1970, 1, 1);
    for days in 0..180_000 {
        assert_eq!(civil(days), (year, month, day), "day {days}");
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        day += 1;
        if day > length {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
    }
}

proptest! {
    /// What we write, we read: the strict reader takes each head and each chunk.
    // proves R-HTTP-4
    #[test]
    fn what_is_written_is_read(data in prop::collection::vec(any::<u8>(), 0..600), head_first in any::<bool>()) {
        let mut out = Vec::new();
        response_head(&mut out, 200, &[], Framing::Chunked, false, Some(&http_date(1)));
        let told = head::parse_response(&out, &mut 0, &HeadLimits::ENGINE).unwrap().unwrap();
        prop_assert_eq!(told.body, ResponseBody::Chunked);
        let head_bytes = if head_first { told.head_bytes } else { 0 };
        out.truncate(head_bytes);
        let mark = chunk_begin(&mut out);
        out.extend_from_slice(&data);
        let skip = chunk_seal(&mut out, mark);
        out.extend_from_slice(LAST_CHUNK);
        let input = &out[skip + head_bytes..];
        let want = Outcome::Done { payload: data, used: input.len() };
        prop_assert_eq!(decode(ResponseBody::Chunked, input, input.len()), want);
    }
}
