//! Cores, or other things that the kernel numbers, as Linux writes them in one line (cpuset(7), "List format", without strides).

use std::fmt;
use std::str::FromStr;

use super::PlanError;

/// `0-3,8`: ascending, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// What a `cpu_set_t` holds (CPU_SETSIZE, 1024); core_affinity panics past it.
pub const CPU_ID_MAX: usize = 1023;

impl CpuList {
    /// Ascending and each once, whatever the order given; `None` when empty or out of range.
    pub fn new(mut ids: Vec<usize>) -> Option<CpuList> {
        ids.sort_unstable();
        ids.dedup();
        (ids.last().is_some_and(|last| *last <= CPU_ID_MAX)).then_some(CpuList(ids))
    }

    pub fn ids(&self) -> &[usize] {
        &self.0
    }

    /// What both have; `None` when nothing.
    pub fn common(&self, other: &CpuList) -> Option<CpuList> {
        let both = self.0.iter().filter(|id| other.0.contains(id));
        CpuList::new(both.copied().collect())
    }
}

impl FromStr for CpuList {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<CpuList, PlanError> {
        let wrong = || PlanError::List(text.chars().take(64).collect());
        let id = |text: &str| -> Result<usize, PlanError> {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let id = text.parse().ok().filter(|id| digits && *id <= CPU_ID_MAX);
            id.ok_or_else(wrong)
        };
        let mut ids = Vec::new();
        // Checked before it is split: at most every core by number and comma.
        if text.len() > 5 * (CPU_ID_MAX + 1) {
            return Err(wrong());
        }
        for range in text.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (id(first)?, id(last)?);
            if first > last {
                return Err(wrong());
            }
            ids.extend(first..=last);
        }
        CpuList::new(ids).ok_or_else(wrong)
    }
}

/// As Linux writes it: runs joined with `-`.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}
