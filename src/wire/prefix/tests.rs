//! Bodies that mean the same, bodies that do not, and hashes against a plain reader's.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::base::prng::Prng;

fn salt() -> Salt {
    Salt::new(&mut Prng::new(5))
}

fn chat(body: &str) -> Prefix {
    let read = fuzzing::read(body.as_bytes(), Route::Chat, &salt());
    read.unwrap_or_else(|| panic!("{body}"))
}

fn completion(body: &str) -> Prefix {
    let read = fuzzing::read(body.as_bytes(), Route::Completions, &salt());
    read.unwrap_or_else(|| panic!("{body}"))
}

/// Leading blocks that both have.
fn shared(a: &Prefix, b: &Prefix) -> usize {
    let pairs = a.blocks.iter().zip(&b.blocks);
    pairs.take_while(|(a, b)| a == b).count()
}

const LONG: usize = 3 * BLOCK_BYTES;

fn long(c: &str) -> String {
    c.repeat(LONG / c.len())
}

// proves R-SCH-6
#[test]
fn what_means_the_same_is_the_same() {
    let text = long("é b");
    let escaped = text.replace('é', r"\u00e9").replace('b', r"\u0062");
    let message = |content: &str| format!(r#"{{"role":"user","content":{content}}}"#);
    let plain = format!(r#"{{"messages":[{}]}}"#, message(&format!("\"{text}\"")));
    let rows = [
        ("escapes", plain.replace(&text, &escaped)),
        ("white space", plain.replace(':', " :\n").replace('[', "[ ")),
        (
            "order",
            format!(r#"{{"messages":[{{"content":"{text}","role":"user"}}]}}"#),
        ),
        (
            "escaped names",
            format!(r#"{{"me\u0073sages":[{{"r\u006fle":"\u0075ser","content":"{text}"}}]}}"#),
        ),
        (
            "the last of several",
            format!(
                r#"{{"messages":[],"messages":[{{"role":"x","role":"user","content":7,"content":"{text}"}}]}}"#
            ),
        ),
        (
            "a part",
            format!(
                r#"{{"messages":[{}]}}"#,
                message(&format!(r#"[{{"type":"text","text":"{text}"}}]"#))
            ),
        ),
        (
            "null members",
            format!(
                r#"{{"cache_salt":null,"tools":null,"messages":[{{"role":"user","content":"{text}","tool_calls":null}}]}}"#
            ),
        ),
        (
            "what is no prompt",
            format!(
                r#"{{"temperature":1,"max_tokens":9,"stream":true,"messages":[{}],"seed":1}}"#,
                message(&format!("\"{text}\""))
            ),
        ),
        (
            "the prompt of another route is not read",
            format!(
                r#"{{"prompt":"x","messages":[{}]}}"#,
                message(&format!("\"{text}\""))
            ),
        ),
    ];
    let want = chat(&plain);
    assert_eq!(want.blocks().len(), LONG / BLOCK_BYTES);
    for (name, body) in rows {
        assert_eq!(chat(&body), want, "{name}");
    }
    let string = completion(&format!(r#"{{"prompt":"{text}"}}"#));
    assert_eq!(
        string,
        completion(&format!(r#"{{"prompt":["{escaped}"]}}"#))
    );
    let ids = |ids: &str| completion(&format!(r#"{{"prompt":{ids}}}"#));
    let list = format!("[{}]", vec!["77"; LONG / 4].join(","));
    assert_eq!(ids(&list), ids(&format!("[ {}]", list.replace(',', ",\n"))));
    assert_eq!(ids(&list).blocks().len(), LONG / BLOCK_BYTES);
}

// proves R-SCH-6
#[test]
fn what_differs_in_front_shares_nothing() {
    let text = long("ab");
    let message = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    let body = |more: &str| format!("{{{more}{message}}}");
    let rows = [
        ("plain", body("")),
        ("salt", body(r#""cache_salt":"a","#)),
        ("another salt", body(r#""cache_salt":"b","#)),
        ("a salt that is no string", body(r#""cache_salt":["b"],"#)),
        ("template", body(r#""chat_template":"a","#)),
        ("kwargs", body(r#""chat_template_kwargs":{"a":1},"#)),
        ("other kwargs", body(r#""chat_template_kwargs":{"a":"1"},"#)),
        ("tools", body(r#""tools":[{"type":"function"}],"#)),
        ("role", body("").replace("user", "system")),
        (
            "a role in the text",
            body("").replace(r#""user","content":""#, r#""","content":"user"#),
        ),
        (
            "two messages",
            body("").replace("[{", r#"[{"role":"user","content":""},{"#),
        ),
        (
            "calls",
            body("").replace("[{", r#"[{"role":"user","tool_calls":[1]},{"#),
        ),
        ("text", body("").replace(&text, &long("cd"))),
    ];
    let read = rows.map(|(name, body)| (name, chat(&body)));
    for (i, (name, one)) in read.iter().enumerate() {
        assert!(one.blocks().len() >= LONG / BLOCK_BYTES, "{name}");
        for (other, two) in &read[..i] {
            assert_eq!(shared(one, two), 0, "{name}, {other}");
        }
    }
    // The same bytes as text and as ids.
    let id = u32::from_le_bytes(*b"abab");
    let ids = vec![id.to_string(); LONG / 4].join(",");
    let as_ids = completion(&format!(r#"{{"prompt":[{ids}]}}"#));
    let as_text = completion(&format!(r#"{{"prompt":"{text}"}}"#));
    assert_eq!(as_ids.bytes, as_text.bytes);
    assert_eq!(shared(&as_ids, &as_text), 0);
    // Another process has other hashes.
    let elsewhere = Salt::new(&mut Prng::new(6));
    let other = fuzzing::read(body("").as_bytes(), Route::Chat, &elsewhere).unwrap();
    assert_eq!(shared(&read[0].1, &other), 0);
}

// proves R-SCH-6
#[test]
fn a_prompt_shares_its_front_with_the_one_it_goes_on_from() {
    let turn = |n: usize| json!({"role": "user", "content": format!("{n} {}", long("turn "))});
    let body = |turns: usize| {
        let turns: Vec<Value> = (0..turns).map(turn).collect();
        chat(&json!({"messages": turns}).to_string())
    };
    let (one, two, three) = (body(1), body(2), body(3));
    assert_eq!(shared(&one, &three), one.blocks().len());
    assert_eq!(shared(&two, &three), two.blocks().len());
    assert!(two.blocks().len() < three.blocks().len());
    // A change in the middle.
    let text = long("x") + &long("y");
    let changed = text.replacen('y', "z", 1);
    let of = |text: &str| completion(&json!({ "prompt": text }).to_string());
    assert_eq!(shared(&of(&text), &of(&changed)), LONG / BLOCK_BYTES);
}

// proves R-SCH-6
#[test]
fn what_is_no_text_ends_it() {
    let text = long("ab");
    let part = json!({"type": "text", "text": text});
    let rows = [
        (
            "image",
            json!([part, {"type": "image_url", "image_url": {"url": "u"}}, part]),
        ),
        (
            "audio with a text",
            json!([part, {"type": "input_audio", "text": "x"}, part]),
        ),
        ("no text", json!([part, {"type": "text"}, part])),
        ("a number", json!([part, 7, part])),
    ];
    for (name, content) in rows {
        let body = json!({"messages": [{"role": "user", "content": content}, {"role": "user", "content": text}]});
        let got = chat(&body.to_string());
        assert!(got.ended, "{name}");
        assert_eq!(got.blocks().len(), LONG / BLOCK_BYTES, "{name}");
        // Counted by its bytes: what the image weighs is not known.
        assert_eq!(got.tokens(2, 100_000, 4.0), 256, "{name}");
        assert_eq!(got.tokens(2, 100, 4.0), 99, "{name}");
    }
    for body in [
        json!({"prompt": "", "prompt_embeds": "AAAA"}),
        json!({"x": text}),
        json!({"messages": null}),
    ] {
        let got = completion(&body.to_string());
        assert!(got.ended && got.blocks().is_empty(), "{body}");
        assert_eq!(got.tokens(9, 100, 4.0), 0);
    }
}

// proves R-SCH-6
#[test]
fn tokens_are_a_share_of_those_counted() {
    let of = |bytes: usize| completion(&json!({ "prompt": "a".repeat(bytes) }).to_string());
    // bytes, blocks held, tokens of the prompt, tokens held
    let rows = [
        (4 * BLOCK_BYTES, 2, 1_000, 500),
        (4 * BLOCK_BYTES, 4, 1_000, 999),
        (4 * BLOCK_BYTES, 9, 1_000, 999),
        (4 * BLOCK_BYTES, 0, 1_000, 0),
        (4 * BLOCK_BYTES, 4, 1, 0),
        (4 * BLOCK_BYTES, 4, 0, 0),
        (BLOCK_BYTES - 1, 1, 100, 0),
        (0, 1, 100, 0),
    ];
    for (bytes, blocks, prompt, want) in rows {
        assert_eq!(
            of(bytes).tokens(blocks, prompt, 3.8),
            want,
            "{bytes} {blocks} {prompt}"
        );
    }
}

// proves R-SCH-6
#[test]
fn a_prompt_is_looked_at_up_to_a_bound() {
    let text = "0123456789abcdef".repeat(BLOCKS_MAX * BLOCK_BYTES / 16 + 100);
    let got = completion(&json!({ "prompt": text }).to_string());
    assert_eq!(got.blocks().len(), BLOCKS_MAX);
    assert_eq!(got.bytes, text.len() as u64);
    assert!(!got.ended);
    let half = got.tokens(BLOCKS_MAX / 2, 100_000, 3.8);
    assert!((49_900..50_000).contains(&half), "{half}");
}

#[test]
fn room_is_kept_for_the_next_prompt() {
    let mut prefix = chat(&json!({"messages": [{"content": long("a")}]}).to_string());
    prefix.clear();
    assert_eq!(prefix, Prefix::default());
    assert!(prefix.blocks.capacity() >= LONG / BLOCK_BYTES);
}

/// A counter's low bits and single flips do not show in few bits of a hash.
#[test]
fn hashes_spread() {
    let salt = salt();
    let mut seen = BTreeMap::new();
    let mut ones = [0u32; 64];
    const N: u64 = 4_096;
    for i in 0..N {
        let mut block = [0u8; BLOCK_BYTES];
        let at = (i as usize * 8) % BLOCK_BYTES;
        block[at..at + 8].copy_from_slice(&(1 + i / 64).to_le_bytes());
        let mut blocks = Vec::new();
        Chain::new(&salt, &mut blocks).push(&block);
        assert_eq!(seen.insert(blocks[0], i), None);
        for (bit, count) in ones.iter_mut().enumerate() {
            *count += (blocks[0] >> bit & 1) as u32;
        }
    }
    // Six deviations of 32 either way.
    assert!(ones.iter().all(|n| n.abs_diff(2_048) < 192), "{ones:?}");
}

#[test]
fn odd_bodies_read_as_by_the_plain_reader() {
    let deep = format!(
        r#"{{"tools":{}1{},"messages":[]}}"#,
        "[".repeat(100),
        "]".repeat(100)
    );
    let rows = [
        r#"{"messages":[{},{"content":null},{"content":""},{"role":null,"content":[]}]}"#,
        r#"{"messages":[{"role":7,"content":{"a":["\u0041", 1]}}],"tools":[ {"a" : "b\n" } ]}"#,
        r#"{"messages":[{"content":["a",{"text":"b"},{"type":null,"text":"c"}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url"}]}]}"#,
        r#"{"prompt":[1,2,3]}"#,
        r#"{"prompt":[[1,4294967296,99999999999999999999]]}"#,
        r#"{"prompt":[1.5,-2]}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":[[]]}"#,
        r#"{"prompt":[{"a":1}]}"#,
        r#"{"prompt":["\ud83d\ude00"],"cache_salt":"s"}"#,
        r#"{"prompt":"","prompt_embeds":"A"}"#,
        &deep,
        "{}",
        "[]",
        "",
    ];
    for body in rows {
        fuzzing::fuzz(body.as_bytes());
    }
}

fn content() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[a-cé\"\\\\\n]{0,9}", "[a-z ]{500,1100}"];
    prop_oneof![
        text.clone().prop_map(Value::from),
        Just(Value::Null),
        proptest::collection::vec(
            prop_oneof![
                text.clone()
                    .prop_map(|text| json!({"type": "text", "text": text})),
                text.prop_map(Value::from),
                Just(json!({"type": "image_url"})),
            ],
            0..3
        )
        .prop_map(Value::from),
    ]
}

proptest! {
    #[test]
    fn conversations_read_as_by_the_plain_reader(
        contents in proptest::collection::vec(content(), 0..5),
        tools in any::<bool>(),
        calls in any::<bool>(),
    ) {
        let messages: Vec<Value> = contents.iter().enumerate().map(|(i, content)| {
            let role = ["user", "assistant"][i % 2];
            let mut message = json!({"role": role, "content": content});
            if calls && i % 2 == 1 {
                message["tool_calls"] = json!([{"id": "a", "function": {"arguments": "{\"x\": 1}"}}]);
            }
            message
        }).collect();
        let mut body = json!({ "messages": messages });
        if tools {
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
        }
        fuzzing::fuzz(body.to_string().as_bytes());
        fuzzing::fuzz(serde_json::to_string_pretty(&body).unwrap().as_bytes());
    }

    /// However the string is cut, its hashes are the same.
    #[test]
    fn pieces_do_not_matter(cuts in proptest::collection::vec(0usize..1_700, 0..12)) {
        let text: Vec<u8> = (0..1_700u32).map(|i| (i * i % 251) as u8).collect();
        let salt = salt();
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        Chain::new(&salt, &mut whole).push(&text);
        let mut cuts = cuts;
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut chain = Chain::new(&salt, &mut pieces);
        for pair in cuts.windows(2) {
            chain.push(&text[pair[0]..pair[1]]);
        }
        prop_assert_eq!(chain.bytes(), text.len() as u64);
        prop_assert_eq!(whole, pieces);
    }
}
