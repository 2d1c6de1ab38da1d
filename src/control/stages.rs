//! The stages of a monitoring pass, and what follows when they fail. A stage fails when its own work fails, not when an engine is down.
//!
//! Pure. Invariant: one whole pass without a failure makes good for all before it.

use crate::base::words::words;

words! {
    /// What a pass does.
    Stage {
        Health = "health",
        StateFile = "state_file",
    }
}

/// What failed first in a pass, and how: a word for `/ready`.
pub type Failed = (Stage, &'static str);

/// What a pass says: that it failed, that all of it was well, or nothing. `unwell` is what the last health pass could not do, `asks`
/// whether this is one: between two of them nobody is asked, which is neither another failure nor makes it good.
pub fn conclusion(
    asks: bool,
    unwell: Option<Failed>,
    kept: Result<(), Failed>,
) -> Option<Option<Failed>> {
    let failed = unwell.filter(|_| asks).or(kept.err());
    (failed.is_some() || unwell.is_none()).then_some(failed)
}

/// Passes in a row in which a stage failed.
#[derive(Debug)]
pub struct Streak {
    limit: u32,
    passes: u32,
    /// Said, and not taken back yet.
    degraded: bool,
}

/// What a pass changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too many in a row: the router holds back.
    Degraded(Failed),
    Well,
}

impl Streak {
    /// A `limit` of 0 reads as 1.
    pub fn new(limit: u32) -> Streak {
        Streak {
            limit: limit.max(1),
            passes: 0,
            degraded: false,
        }
    }

    /// Another limit; the passes that have failed stay counted.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
    }

    /// `None` while it takes more failures to say something, or nothing has changed.
    pub fn pass(&mut self, failed: Option<Failed>) -> Option<Verdict> {
        let Some(failed) = failed else {
            let was_degraded = std::mem::take(&mut self.degraded);
            self.passes = 0;
            return was_degraded.then_some(Verdict::Well);
        };
        self.passes = self.passes.saturating_add(1);
        // The reason may be another than in the pass before.
        self.degraded |= self.passes >= self.limit;
        self.degraded.then_some(Verdict::Degraded(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves R-CTL-4
    #[test]
    fn a_failure_counts_once_and_stands_until_engines_are_asked_again() {
        let (health, file) = ((Stage::Health, "descriptors"), (Stage::StateFile, "full"));
        let rows = [
            (true, None, Ok(()), Some(None)),
            (false, None, Ok(()), Some(None)),
            (true, Some(health), Ok(()), Some(Some(health))),
            (false, Some(health), Ok(()), None),
            (true, Some(health), Err(file), Some(Some(health))),
            (false, Some(health), Err(file), Some(Some(file))),
            (false, None, Err(file), Some(Some(file))),
        ];
        for row @ (asks, unwell, kept, says) in rows {
            assert_eq!(conclusion(asks, unwell, kept), says, "{row:?}");
        }
    }

    /// Rows: limit, passes (`.` whole, `x` failed), what each says (`d` degraded, `w` well again, `-` nothing).
    // proves R-CTL-4
    #[test]
    fn failures_in_a_row_degrade_and_a_whole_pass_makes_good() {
        let rows = [
            (1, ".x.x", "-dwd"),
            (0, "x.", "dw"),
            (3, "xx.xxxx..x", "-----ddw--"),
            (2, "x.x.x.", "------"),
        ];
        let failed = (Stage::StateFile, "io");
        for (limit, passes, want) in rows {
            let mut streak = Streak::new(limit);
            let said: String = passes
                .chars()
                .map(|pass| match streak.pass((pass == 'x').then_some(failed)) {
                    Some(Verdict::Degraded(what)) => {
                        assert_eq!(what, failed);
                        'd'
                    }
                    Some(Verdict::Well) => 'w',
                    None => '-',
                })
                .collect();
            assert_eq!(said, want, "{limit} {passes}");
        }
    }
}
