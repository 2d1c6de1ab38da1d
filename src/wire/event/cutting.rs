//! Which bytes of an object go when members are cut out of it, so that what stays is JSON. Owns the state of one object's walk.

use std::ops::Range;

use crate::wire::json::RawStr;

/// Cut spans of one object. A cut takes one comma with it: the one before it when an earlier member stays, else the one
/// after it, up to the next member; with no member left at all it takes none.
#[derive(Default)]
pub(super) struct Cutting {
    /// A member before this one stays.
    pub(super) kept: bool,
    /// The last of the cuts runs to the start of the next member.
    open: bool,
}

impl Cutting {
    pub(super) fn next_member(&mut self, cuts: &mut [Range<usize>], key: &RawStr<'_>) {
        if self.open {
            self.open = false;
            if let Some(last) = cuts.last_mut() {
                last.end = key.at;
            }
        }
    }

    pub(super) fn cut(
        &mut self,
        cuts: &mut Vec<Range<usize>>,
        comma: usize,
        key: &RawStr<'_>,
        end: usize,
    ) {
        self.open = !self.kept;
        cuts.push(if self.kept { comma } else { key.at }..end);
    }
}
