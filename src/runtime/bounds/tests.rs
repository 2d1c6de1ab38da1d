//! Which limit counts in which class, the numbers of the defaults, and a task's size.

use super::*;
use crate::config::{self, Format};
use crate::runtime::drive;
use crate::runtime::monoio::Monoio;

const MIB: u64 = 1 << 20;

fn fleet(sections: &str) -> Fleet {
    let engine = |n: usize, role: &str| {
        let port = 9000 + n;
        format!(
            "[[engines]]\niid = \"e{n}\"\nurl = \"http://127.0.0.1:{port}\"\nrole = \"{role}\"\n"
        )
    };
    let engines = engine(0, "prefill") + &engine(1, "decode");
    let text = format!(
        "schema = \"narwhal.fleet\"\nschema_version = 2\nmodel = \"m\"\n{engines}[slo]\nttft_s = 1\ntpot_s = 0.1\n{sections}"
    );
    let loaded = config::parse("f.toml", &text, Format::Toml, &|_| None);
    loaded.unwrap_or_else(|why| panic!("{why}\n{text}")).fleet
}

const PLAIN: &str = "[serving]\nadmission = \"open\"\n";

/// The rows by the classes that differ from those of the defaults.
fn changed(sections: &str, shards: usize, descriptors: u64) -> Vec<Class> {
    let plain = bounds(&fleet(PLAIN), 2, 1024);
    let other = bounds(&fleet(sections), shards, descriptors);
    let pairs = plain.rows.iter().zip(&other.rows);
    let grew = pairs.filter(|(a, b)| {
        assert!(b.total() >= a.total(), "{sections}: {:?}", a.class);
        a != b
    });
    grew.map(|(row, _)| row.class).collect()
}

// proves R-HTTP-3
#[test]
fn every_limit_counts_where_it_holds() {
    use Class::*;
    let with = |more: &str| format!("{PLAIN}{more}");
    let rows: [(String, usize, u64, &[Class]); 11] = [
        (with(""), 2, 1024, &[]),
        (with(""), 3, 1024, &[Shard, Page]),
        (with(""), 2, 4096, &[Connection]),
        (
            with("max_connections = 1000\n"),
            2,
            1024,
            &[Request, Answer, Pooled],
        ),
        (
            with("queue_capacity = 10\nqueue_timeout_s = 1\n"),
            2,
            1024,
            &[Request, Answer, Pooled],
        ),
        (
            with("max_retained = 800\n"),
            2,
            1024,
            &[Request, Answer, Pooled],
        ),
        (
            with("max_request_bytes = 8388608\n"),
            2,
            1024,
            &[Shard, Request],
        ),
        (
            with("max_response_bytes = 33554432\n"),
            2,
            1024,
            &[Shard, Request, Answer],
        ),
        (
            with("[runtime]\nmax_header_bytes = 131072\n"),
            2,
            1024,
            &[Shard, Connection, Request, Page],
        ),
        (with("[engine]\npool_max = 1000\n"), 2, 1024, &[Pooled]),
        // Two legs at once.
        (
            with("max_request_bytes = 67108864\n[engine]\ndialect = \"sglang\"\n"),
            2,
            1024,
            &[Shard, Request, Answer, Pooled],
        ),
    ];
    for (sections, shards, descriptors, want) in rows {
        assert_eq!(changed(&sections, shards, descriptors), want, "{sections}");
    }
}

/// The defaults, by hand: a change of a constant is meant, or it is not.
#[test]
fn the_defaults_come_to_what_the_page_says() {
    let table = bounds(&fleet(PLAIN), 1, 1024);
    let kib = |class: Class| table.of(class).each.div_ceil(1024);
    assert_eq!(table.of(Class::Connection).count, 1024);
    assert_eq!(table.of(Class::Request).count, 768);
    assert_eq!(table.of(Class::Answer).count, 768);
    assert_eq!(table.of(Class::Pooled).count, 768);
    // Task 12, read 4, head and pipeline 2 × 68, out 2 × 64.
    assert_eq!(kib(Class::Connection), 280);
    // Twelve times 16 MiB, and half a MiB of reads, heads and the client's buffer.
    assert_eq!(table.of(Class::Answer).each / MIB, 192);
    // The body twice, and the leg: body, handoff, head and edits, twice.
    assert_eq!(table.of(Class::Request).each / MIB, 8 + 40);
    let line = table.to_string();
    assert!(line.starts_with("at most "), "{line}");
    for part in [
        "1 process × ",
        " + 1 shard × ",
        " + 1024 connections × 280 KiB",
        " + 768 requests × ",
        "; a stream whose client takes nothing holds ",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let sum: u64 = table.rows.iter().map(|row| row.count * row.each).sum();
    assert_eq!(table.total(), sum);
}

#[test]
fn units_are_rounded_up() {
    let rows = [
        (1, "1 KiB"),
        (10 * MIB - 1, "10240 KiB"),
        (10 * MIB, "10 MiB"),
        (10 * MIB + 1, "11 MiB"),
        (10 << 30, "10 GiB"),
        ((10 << 30) + 1, "11 GiB"),
        (u64::MAX, "17179869184 GiB"),
    ];
    for (bytes, text) in rows {
        assert_eq!(Bytes(bytes).to_string(), text);
    }
}

#[test]
fn numbers_that_are_too_large_do_not_wrap() {
    let table = bounds(&fleet(PLAIN), usize::MAX >> 8, u64::MAX);
    assert_eq!(table.total(), u64::MAX);
}

/// A task is what the compiler makes of it.
#[test]
fn a_connections_task_is_no_larger_than_it_is_counted() {
    fn size<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> u64 {
        size_of::<F>() as u64
    }
    let task = size(drive::connection::<Monoio>);
    let boxes = 2 * (2 << 10);
    assert!(task + boxes <= TASK, "{task}");
}
