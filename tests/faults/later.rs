//! When a refused request is told to come back: the overrun in whole seconds, upwards, and never less than one.

use narwhal::base::time::Instant;

use super::fleet::{Asking, Router};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Seconds that the fleet's profile has for a prompt.
fn prompt_s(tokens: u64) -> f64 {
    let n = tokens as f64;
    1e-9 * n * n + 5e-5 * n + 0.01
}

/// Its target for the first token.
const TARGET_S: f64 = 2.0;

/// The answer to a prompt of a thousand tokens behind one that takes so long.
fn behind(backlog_s: f64) -> String {
    let tokens = (1..).find(|n| prompt_s(*n) >= backlog_s);
    let mut router = Router::new(1, 1, "price");
    let shard = &mut router.shards[0];
    let mut first = Asking::new(NOW);
    (first.exchange.prompt_tokens, first.exchange.sized_tokens) =
        (tokens.expect("a length"), tokens.expect("a length"));
    first.with(shard, NOW, |exchange, cx| {
        let (rank, plan) = exchange.plan(cx).expect("engines are there");
        exchange.settle(cx, rank, plan);
    });
    let mut second = Asking::new(NOW);
    let fits = second.with(shard, NOW, |exchange, cx| {
        cx.shard.ledger.update(|tx| tx.offer());
        exchange.is_promising(cx, false)
    });
    let (answer, from) = second.io.out.take().unwrap_or_default();
    let answer = String::from_utf8_lossy(&answer[from..]).into_owned();
    assert_eq!(fits, answer.is_empty(), "{answer}");
    first.with(shard, NOW, |exchange, cx| exchange.release_attempt(cx));
    answer
}

// proves R-ADM-4
#[test]
fn an_overrun_is_told_in_whole_seconds() {
    let own = prompt_s(1_000);
    for (over_s, told) in [
        (0.001, "1"),
        (0.2, "1"),
        (0.999, "1"),
        (1.001, "2"),
        (3.4, "4"),
        (3.999, "4"),
        (59.9, "60"),
    ] {
        // A hair less than the next token would add.
        let answer = behind(TARGET_S + over_s - own - 0.0001);
        assert!(answer.starts_with("HTTP/1.1 429 "), "{over_s}: {answer}");
        let field = format!("retry-after: {told}\r\n");
        assert!(answer.contains(&field), "{over_s}: {answer}");
        assert!(answer.contains("\r\nx-request-id: "), "{answer}");
        assert!(answer.contains("server_overloaded_error"), "{answer}");
    }
    assert_eq!(behind(TARGET_S - own - 0.01), "", "it fits");
}
