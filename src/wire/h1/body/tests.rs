//! Tables over chunk syntax, and the decoder against its oracle.

use proptest::prelude::*;

use super::fuzzing::{Outcome, decode, fuzz};
use super::*;

/// Decodes whole, byte by byte and cut at every offset; all must agree, and the oracle too.
fn every_split(body: ResponseBody, input: &[u8]) -> Outcome {
    let whole = decode(body, input, input.len());
    for step in 1..=input.len() {
        assert_eq!(decode(body, input, step), whole, "reads of {step}");
    }
    if body == ResponseBody::Chunked {
        fuzz(&[&[7, 3], input].concat());
    }
    whole
}

fn done(payload: &[u8], used: usize) -> Outcome {
    Outcome::Done {
        payload: payload.to_vec(),
        used,
    }
}

fn wait(payload: &[u8]) -> Outcome {
    Outcome::Wait {
        payload: payload.to_vec(),
    }
}

// proves R-LEG-6
#[test]
fn other_framings() {
    let rows = [
        ("none", ResponseBody::None, "abc", done(b"", 0)),
        ("length", ResponseBody::Length(3), "abc", done(b"abc", 3)),
        (
            "length and more",
            ResponseBody::Length(2),
            "abc",
            done(b"ab", 2),
        ),
        ("length 0", ResponseBody::Length(0), "abc", done(b"", 0)),
        ("length, cut", ResponseBody::Length(4), "abc", wait(b"abc")),
        (
            "largest length",
            ResponseBody::Length(u64::MAX),
            "abc",
            wait(b"abc"),
        ),
        ("until close", ResponseBody::UntilClose, "abc", wait(b"abc")),
        (
            "until close, empty",
            ResponseBody::UntilClose,
            "",
            wait(b""),
        ),
    ];
    for (name, body, input, want) in rows {
        assert_eq!(every_split(body, input.as_bytes()), want, "row {name}");
    }
    for (body, ended) in [
        (RequestBody::None, true),
        (RequestBody::Length(0), true),
        (RequestBody::Length(1), false),
        (RequestBody::Chunked, false),
    ] {
        let decoder = BodyDecoder::request(body);
        assert_eq!(decoder.ended(), ended, "{body:?}");
        assert_eq!(decoder.eof().is_ok(), ended, "{body:?}");
    }
    // The last byte of a sized body ends it: nobody has to ask once more.
    let mut decoder = BodyDecoder::request(RequestBody::Length(2));
    assert!(matches!(decoder.next(b"ab"), Ok(Step::Piece { .. })));
    assert!(decoder.ended());
}

// proves R-HTTP-1, R-HTTP-2, R-LEG-6
#[test]
fn extensions() {
    let good = [
        ";a",
        ";a=1",
        " ;a=1",
        "\t; \ta \t= \t1",
        ";a;b",
        ";a=1;b=2",
        ";a ;b",
        ";a=1 ;b",
        ";a=\"\"",
        ";a=\"b c\"",
        ";a=\"b;c=d\"",
        ";a=\"\\\"\"",
        ";a=\"\\\\\"",
        ";a=\"\\a\"",
        ";a=\"x\";b",
        ";a=\"x\" ;b",
        ";a=\"\t\"",
        ";a=\"\u{e9}\"",
        ";!#$%&'*+-.^_`|~=0",
        ";a = \"x\"",
    ];
    for text in good {
        let input = format!("1{text}\r\na\r\n0{text}\r\n\r\n");
        assert_eq!(
            every_split(ResponseBody::Chunked, input.as_bytes()),
            done(b"a", input.len()),
            "{text:?}"
        );
    }
    let bad = [
        ";",
        " ",
        "; ",
        ";;",
        ";a;",
        ";a ",
        ";a=",
        ";a= ",
        ";=1",
        ";a=1 ",
        ";a=1,2",
        ";a==1",
        ";a=1=2",
        ";a b",
        ";a=1 2",
        ";a=\"",
        ";a=\"x",
        ";a=\"x\"y",
        ";a=\"x\" ",
        ";a=\"\\",
        ";a=x\"y\"",
        ";a=\"\r\n\"",
        ";a=\"\r\"",
        ";a=\"\n\"",
        ";a=\"\\\r\n\"",
        ";a=\"\0\"",
        ";a=\"\\\0\"",
        ";a=\"\x7f\"",
        ";a\0",
        ";\u{e9}",
        ";a=\u{e9}",
        ";a\n",
        ";a\r;b",
    ];
    for text in bad {
        let input = format!("1{text}\r\na\r\n0\r\n\r\n");
        let told = every_split(ResponseBody::Chunked, input.as_bytes());
        let size = text.contains("\r;");
        let want = if size {
            BodyFault::ChunkSize
        } else {
            BodyFault::ChunkExtension
        };
        assert_eq!(told, Outcome::Fault(want), "{text:?}");
    }
}

// proves R-HTTP-1, R-HTTP-2
#[test]
fn trailers() {
    let good = [
        "",
        "A: 1\r\n",
        "A:\r\n",
        "A: \t \r\n",
        "A: 1\r\nB: 2\r\nA: 3\r\n",
        "!~: \u{e9}\t:\r\n",
    ];
    for text in good {
        let input = format!("1\r\na\r\n0\r\n{text}\r\nNEXT");
        let used = input.len() - 4;
        assert_eq!(
            every_split(ResponseBody::Chunked, input.as_bytes()),
            done(b"a", used),
            "{text:?}"
        );
    }
    let bad = [
        "A\r\n",
        ": 1\r\n",
        " A: 1\r\n",
        "A : 1\r\n",
        "A: 1\r\n b\r\n",
        "A: 1\n",
        "A: \r1\r\n",
        "A: \0\r\n",
        "A: \x7f\r\n",
        "\n",
        "\rX",
        "\u{e9}: 1\r\n",
        "A\n: 1\r\n",
    ];
    for text in bad {
        let input = format!("0\r\n{text}\r\n");
        let told = every_split(ResponseBody::Chunked, input.as_bytes());
        assert_eq!(told, Outcome::Fault(BodyFault::Trailer), "{text:?}");
    }
}

// proves R-HTTP-3, R-LEG-6
#[test]
fn lines_and_trailers_are_bounded() {
    let chunk = |line: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(line - "1;\r\n".len()));
    let last = |line: usize| format!("0;{}\r\n\r\n", "e".repeat(line - "0;\r\n".len()));
    let max = limits::CHUNK_LINE_BYTES_MAX;
    for (text, payload) in [(chunk(max), &b"a"[..]), (last(max), b"")] {
        let want = done(payload, text.len());
        assert_eq!(every_split(ResponseBody::Chunked, text.as_bytes()), want);
    }
    for text in [
        chunk(max + 1),
        last(max + 1),
        format!("1;{}", "e".repeat(max)),
    ] {
        let want = Outcome::Fault(BodyFault::ChunkExtension);
        assert_eq!(every_split(ResponseBody::Chunked, text.as_bytes()), want);
    }
    let section = |bytes: usize| {
        let lines = "A: 1\r\n".repeat(bytes / 6 - 1);
        let pad = bytes - lines.len() - "A: \r\n\r\n".len();
        format!("0\r\n{lines}A: {}\r\n\r\n", "x".repeat(pad))
    };
    let max = limits::TRAILER_BYTES_MAX;
    let (fits, over) = (section(max), section(max + 1));
    let endless = format!("0\r\nA: {}", "x".repeat(max));
    for step in [1, 7, usize::MAX / 2] {
        assert_eq!(
            decode(ResponseBody::Chunked, fits.as_bytes(), step),
            done(b"", fits.len())
        );
        for text in [&over, &endless] {
            let want = Outcome::Fault(BodyFault::TrailerTooLarge);
            assert_eq!(decode(ResponseBody::Chunked, text.as_bytes(), step), want);
        }
    }
}

// proves R-LEG-6
#[test]
fn closing_early_is_told() {
    let text = b"5;a=\"b\"\r\nhello\r\n0\r\nA: 1\r\n\r\n";
    for end in 0..=text.len() {
        let mut decoder = BodyDecoder::response(ResponseBody::Chunked);
        let mut at = 0;
        while let Ok(Step::Piece { used, .. }) = decoder.next(&text[at..end]) {
            at += used;
        }
        let whole = end == text.len();
        assert_eq!(decoder.ended(), whole, "at {end}");
        let want = if whole {
            Ok(())
        } else {
            Err(BodyFault::Truncated)
        };
        assert_eq!(decoder.eof(), want, "at {end}");
    }
}

/// One read of a busy engine: many chunks, each its own piece, nothing copied.
#[test]
fn one_read_of_many_chunks() {
    let text = "7\r\ndata: x\r\n".repeat(103);
    let mut decoder = BodyDecoder::response(ResponseBody::Chunked);
    let (mut at, mut pieces) = (0, 0);
    while let Ok(Step::Piece { data, used }) = decoder.next(&text.as_bytes()[at..]) {
        assert_eq!(&text[at..][data], "data: x");
        at += used;
        pieces += 1;
    }
    assert_eq!(pieces, 103);
    assert!(!decoder.ended());
}

#[test]
fn statuses_of_faults() {
    assert_eq!(BodyFault::ChunkSize.status(), 400);
    assert_eq!(BodyFault::TrailerTooLarge.status(), 431);
}

// proves R-HTTP-2, R-LEG-6
#[test]
fn fuzz_seeds() {
    let seeds: &[&[u8]] = &[
        b"",
        b"\0",
        b"\0\0abc",
        b"\x01\x02abc",
        b"\x22\x02abcde",
        b"\x22\x02abc",
        b"\x03\x025 ;a=1\r\nhello\r\n0\r\nA: 1\r\n\r\nNEXT",
        b"\x03\x02ffffffffffffffff\r\nhello",
        b"\x03\x0210000000000000000\r\nhello",
        b"\x03\x021;a=\"\\",
        b"\x03\x021\r\na\r",
        b"\x03\x02\xff",
    ];
    for seed in seeds {
        fuzz(seed);
    }
}

/// Pieces of chunked bodies, good and bad, in any order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "1\r\na\r\n",
        "3;a=b\r\nxyz\r\n",
        "0\r\n",
        "\r\n",
        "\r",
        "\n",
        "0",
        "5",
        "f",
        "F",
        ";",
        "a",
        "=",
        "\"",
        "\\",
        " ",
        "\t",
        ":",
        "A: 1\r\n",
        "\0",
        "\u{e9}",
        "; a = \"x\"",
        "00000000000000",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

/// A right body: chunks of any bytes, sizes in any case and width, extensions and trailers here and there.
fn right() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let extension = prop::sample::select(vec!["", ";a", " ; a=\"q\\\"\";b = c"]);
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..40),
        extension,
        1usize..17,
        any::<bool>(),
    );
    let trailer = prop::sample::select(vec!["", "A: 1\r\n", "A: 1\r\nB:\r\n"]);
    (prop::collection::vec(chunk, 0..6), trailer).prop_map(|(chunks, trailer)| {
        let (mut wire, mut payload) = (Vec::new(), Vec::new());
        for (data, extension, width, upper) in chunks {
            let size = match upper {
                true => format!("{:0width$X}", data.len()),
                false => format!("{:0width$x}", data.len()),
            };
            wire.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
            wire.extend_from_slice(&data);
            wire.extend_from_slice(b"\r\n");
            payload.extend_from_slice(&data);
        }
        wire.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
        (wire, payload)
    })
}

proptest! {
    // proves R-HTTP-2, R-LEG-6
    #[test]
    fn pieces_agree_with_the_oracle(bytes in pieces(), cut in any::<u8>()) {
        fuzz(&[&[3, cut], &bytes[..]].concat());
    }

    // proves R-HTTP-1, R-LEG-6
    #[test]
    fn right_bodies_are_read(pair in right(), next in prop::collection::vec(any::<u8>(), 0..9), step in 1usize..50) {
        let (wire, payload) = pair;
        let used = wire.len();
        let input = [wire, next].concat();
        prop_assert_eq!(decode(ResponseBody::Chunked, &input, step), done(&payload, used));
    }

    // proves R-HTTP-2, R-LEG-6
    #[test]
    fn damaged_bodies_agree_with_the_oracle(
        pair in right(),
        at in any::<prop::sample::Index>(),
        (byte, cut) in any::<(u8, u8)>(),
    ) {
        let (mut wire, _) = pair;
        let at = at.index(wire.len());
        wire[at] = byte;
        fuzz(&[&[3, cut], &wire[..]].concat());
        wire.remove(at);
        fuzz(&[&[3, cut], &wire[..]].concat());
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        fuzz(&bytes);
    }
}
