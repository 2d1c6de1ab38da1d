//! One decode point: the interval between tokens while so many streams run together, and the KV they held meanwhile.
//!
//! The window opens when the last stream has its first token (all prompts are read) and is complete when every stream has made enough
//! tokens since. A stream is measured from its first arrival in the window to its last, so that what came before does not count; several
//! tokens in one event, or several events at once, count as the tokens they are. Pure: told what came when.
//!
//! Invariant: a [`Steady`] has all streams in it, from its beginning to its end.

use std::fmt;

use crate::base::time::Instant;

/// What a window showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    pub requests: u64,
    /// Mean over the window, all streams together.
    pub kv_tokens: f64,
    pub interval_s: f64,
}

/// Why there is no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowFault {
    /// A stream ended before all had run together for long enough.
    EndedEarly { running: usize, asked: usize },
    /// Everything came at once.
    NoTime,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    begun: bool,
    /// First and last arrival in the window, and the tokens that came after the first.
    first: Option<Instant>,
    last: Instant,
    tokens: u64,
}

/// Streams that are to run together.
#[derive(Debug)]
pub struct Window {
    tokens_min: u64,
    streams: Vec<Stream>,
    kv_tokens: u64,
    /// When the last stream began.
    open: Option<Instant>,
    seen: Instant,
    /// KV × nanoseconds since then.
    area: f64,
}

impl Window {
    /// `prompts`: the length of each stream's.
    pub fn new(prompts: &[u64], tokens_min: u64) -> Window {
        Window {
            tokens_min: tokens_min.max(1),
            streams: vec![Stream::default(); prompts.len()],
            kv_tokens: prompts.iter().sum(),
            open: None,
            seen: Instant::ZERO,
            area: 0.0,
        }
    }

    /// Tokens of a stream came. `true` once the window is complete.
    pub fn arrived(&mut self, stream: usize, now: Instant, tokens: u64) -> bool {
        if self.open.is_some() {
            self.area += now.since(self.seen).as_nanos() as f64 * self.kv_tokens as f64;
        }
        self.seen = self.seen.max(now);
        self.kv_tokens += tokens;
        let Some(of) = self.streams.get_mut(stream).filter(|_| tokens > 0) else {
            return self.is_complete();
        };
        of.begun = true;
        if self.open.is_some() {
            match of.first {
                None => of.first = Some(now),
                Some(_) => of.tokens += tokens,
            }
            of.last = now;
        } else if self.streams.iter().all(|s| s.begun) {
            self.open = Some(now);
        }
        self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.streams.iter().all(|s| s.tokens >= self.tokens_min)
    }

    /// A stream ended while the window was not complete.
    pub fn ended(&self) -> WindowFault {
        WindowFault::EndedEarly {
            running: self.streams.iter().filter(|s| s.begun).count(),
            asked: self.streams.len(),
        }
    }

    /// What a complete window showed.
    pub fn result(&self) -> Result<Steady, WindowFault> {
        if !self.is_complete() {
            return Err(self.ended());
        }
        let (mut spans, mut tokens) = (0.0, 0);
        for stream in &self.streams {
            spans += stream
                .last
                .since(stream.first.unwrap_or(stream.last))
                .as_secs_f64();
            tokens += stream.tokens;
        }
        let open_for = self.seen.since(self.open.unwrap_or(self.seen));
        let kv_tokens = self.area / open_for.as_nanos() as f64;
        let interval_s = spans / tokens as f64;
        if !(kv_tokens.is_finite() && interval_s.is_finite() && interval_s > 0.0) {
            return Err(WindowFault::NoTime);
        }
        Ok(Steady {
            requests: self.streams.len() as u64,
            kv_tokens,
            interval_s,
        })
    }
}

impl fmt::Display for WindowFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WindowFault::EndedEarly { running, asked } => write!(
                f,
                "a stream ended before all ran together for long enough ({running} of {asked} had begun)"
            ),
            WindowFault::NoTime => f.write_str("all tokens came at once, no interval can be seen"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    // proves R-SCH-5
    #[test]
    fn only_the_time_in_which_all_run_counts() {
        let mut window = Window::new(&[100, 200], 4);
        // The first stream is fast while it is alone, and slow while the other's prompt is read.
        for t in [1, 2, 3, 90] {
            assert!(!window.arrived(0, ms(t), 1));
        }
        assert!(!window.arrived(1, ms(100), 1), "opens the window");
        let mut complete = false;
        for t in (110..=150).step_by(10) {
            assert!(!complete, "{t}");
            complete = window.arrived(0, ms(t), 1);
            complete |= window.arrived(1, ms(t), 1);
        }
        assert!(complete);
        let steady = window.result().expect("complete");
        assert_eq!((steady.requests, steady.interval_s), (2, 0.010));
        // 305 tokens at 100 ms, two more every 10 ms.
        assert!((steady.kv_tokens - 309.0).abs() < 1e-9, "{steady:?}");
    }

    // proves R-SCH-5
    #[test]
    fn tokens_count_and_not_events() {
        let mut window = Window::new(&[10], 6);
        window.arrived(0, ms(10), 1);
        window.arrived(0, ms(20), 1);
        for (t, tokens) in [(50, 3), (50, 0), (60, 1), (80, 2)] {
            let complete = window.arrived(0, ms(t), tokens);
            assert_eq!(complete, t == 80, "{t}");
        }
        assert_eq!(window.result().expect("complete").interval_s, 0.010);
    }

    // proves R-SCH-5
    #[test]
    fn what_is_no_window_is_named() {
        let early = |running, asked| WindowFault::EndedEarly { running, asked };
        let mut window = Window::new(&[10, 10, 10], 2);
        assert_eq!(window.result(), Err(early(0, 3)));
        window.arrived(0, ms(1), 1);
        window.arrived(2, ms(1), 1);
        assert_eq!(window.ended(), early(2, 3));
        window.arrived(9, ms(1), 1);
        assert_eq!(window.ended(), early(2, 3), "no such stream");
        let mut window = Window::new(&[10], 2);
        for _ in 0..4 {
            window.arrived(0, ms(5), 1);
        }
        assert_eq!(window.result(), Err(WindowFault::NoTime));
        // A clock that goes back is no clock; nothing breaks.
        window.arrived(0, ms(4), 1);
        assert!(window.result().is_err());
    }
}
