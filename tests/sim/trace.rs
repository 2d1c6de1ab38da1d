//! What happened, as one number and, when asked for, as lines. Same seed, same number.

use narwhal::base::time::Instant;

use crate::net::Wake;

#[derive(Debug)]
pub struct Trace {
    digest: u64,
    pub steps: u64,
    /// Lines are kept.
    pub wordy: bool,
    pub lines: Vec<String>,
}

/// Lines kept of one run. A replay prints them all.
const LINES_MAX: usize = 400_000;

impl Trace {
    pub fn new(wordy: bool) -> Self {
        Trace {
            digest: 0xcbf2_9ce4_8422_2325,
            steps: 0,
            wordy,
            lines: Vec::new(),
        }
    }

    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// One step: who, what, and a number that belongs to it.
    pub fn step(&mut self, now: Instant, who: Wake, what: &str, n: u64) {
        self.steps += 1;
        let (kind, number) = match who {
            Wake::Conn(i) => ("conn", i),
            Wake::Client(i) => ("client", i),
            Wake::Host(i) => ("host", i),
            Wake::Mail(i) => ("mail", i),
            Wake::House(i) => ("house", i),
            Wake::Arrival => ("arrival", 0),
            Wake::Chaos(i) => ("chaos", i),
        };
        self.mix(now.nanos());
        self.mix(number as u64);
        self.mix(n);
        for byte in what.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.wordy && self.lines.len() < LINES_MAX {
            let ms = now.nanos() as f64 / 1e6;
            self.lines
                .push(format!("{ms:>12.4} ms  {kind} {number:<3} {what} {n}"));
        }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if self.wordy && self.lines.len() < LINES_MAX {
            self.lines.push(format!("{:>17}{}", "", words()));
        }
    }

    fn mix(&mut self, n: u64) {
        self.digest = (self.digest ^ n).wrapping_mul(0x0100_0000_01b3);
        self.digest ^= self.digest >> 29;
    }
}
