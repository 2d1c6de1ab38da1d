//! Whether engines live, by what their health pages answer: a run of misses takes one out, one success brings it back.
//!
//! Pure: the pass (`monitor`) brings the answers and does what follows.

/// The rule. Engines count as live until they miss.
#[derive(Debug)]
pub struct Liveness {
    every: u32,
    misses_max: u32,
    engines: Vec<Seen>,
}

/// What an answer, or none, changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The live flag is set.
    Live,
    /// The live flag is cleared.
    Dead,
    /// It answers again, after too few misses to count as dead: it may have been restarted all the same.
    Back,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    live: bool,
    misses: u32,
}

impl Liveness {
    /// `live`: what the board says now, in its order. A `misses_max` of 0 reads as 1.
    pub fn new(live: impl IntoIterator<Item = bool>, every: u32, misses_max: u32) -> Liveness {
        let engines = live
            .into_iter()
            .map(|live| Seen { live, misses: 0 })
            .collect();
        Liveness {
            every,
            misses_max: misses_max.max(1),
            engines,
        }
    }

    /// Other rules, and as many engines as are said, of which those with a true one count as live until they miss.
    pub fn follow(&mut self, anew: impl IntoIterator<Item = bool>, every: u32, misses_max: u32) {
        (self.every, self.misses_max) = (every, misses_max.max(1));
        for (i, anew) in anew.into_iter().enumerate() {
            let new = Seen {
                live: true,
                misses: 0,
            };
            match self.engines.get_mut(i) {
                Some(seen) if anew => *seen = new,
                Some(_) => {}
                None => self.engines.push(new),
            }
        }
    }

    /// Somebody else has said that it lives.
    pub fn believe(&mut self, engine: usize, live: bool) {
        if let Some(seen) = self
            .engines
            .get_mut(engine)
            .filter(|seen| live && !seen.live)
        {
            *seen = Seen { live, misses: 0 };
        }
    }

    /// Whether this pass (counted from 0) asks.
    pub fn due(&self, pass: u64) -> bool {
        self.every != 0 && pass.is_multiple_of(u64::from(self.every))
    }

    /// Takes one engine's answer; `Some` when that is news.
    pub fn observe(&mut self, engine: usize, answered: bool) -> Option<News> {
        let seen = self.engines.get_mut(engine)?;
        let missed = seen.misses > 0;
        seen.misses = if answered {
            0
        } else {
            seen.misses.saturating_add(1)
        };
        let live = answered || (seen.live && seen.misses < self.misses_max);
        let was_live = std::mem::replace(&mut seen.live, live);
        match (was_live, live) {
            (false, true) => Some(News::Live),
            (true, false) => Some(News::Dead),
            (true, true) if answered && missed => Some(News::Back),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: misses allowed, answers (`.` ok, `x` miss), live flag after each (`l` or `d`; `b` when back after misses).
    // proves R-CTL-1
    #[test]
    fn runs_of_misses_take_out_and_a_success_brings_back() {
        let rows = [
            (1, "..x.x", "lldld"),
            (2, "x.x.xx", "lblbld"),
            (2, "xxx.x.", "lddllb"),
            (3, "xx..xxx.", "llbllldl"),
            (0, "x.", "dl"),
        ];
        for (misses, answers, want) in rows {
            let mut rule = Liveness::new([true], 1, misses);
            let mut flag = true;
            let got: String = answers
                .chars()
                .map(|c| {
                    let before = flag;
                    let news = rule.observe(0, c == '.');
                    flag = match news {
                        Some(News::Live) => true,
                        Some(News::Dead) => false,
                        Some(News::Back) => return 'b',
                        None => return if flag { 'l' } else { 'd' },
                    };
                    assert_ne!(before, flag, "changes only are told");
                    if flag { 'l' } else { 'd' }
                })
                .collect();
            assert_eq!(got, want, "{misses} {answers}");
        }
    }

    #[test]
    fn passes_that_ask() {
        let asks = |every| {
            let rule = Liveness::new([], every, 1);
            (0..7).filter(|p| rule.due(*p)).collect::<Vec<u64>>()
        };
        assert_eq!(asks(0), Vec::<u64>::new());
        assert_eq!(asks(1), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(asks(3), [0, 3, 6]);
        let mut rule = Liveness::new([false], 1, 2);
        assert_eq!(rule.observe(0, false), None, "out at the start stays out");
        assert_eq!(
            (rule.observe(0, true), rule.observe(9, true)),
            (Some(News::Live), None)
        );
    }
}
