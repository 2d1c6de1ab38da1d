//! Moments of the world's clock as text, `2026-11-30T16:57:08.123456Z`, and back (RFC 3339). Reads no clock.
//!
//! Texts of one length sort as their moments do. Invariant: `parse(write(t)) = t` for the years 1970 to 9999.

use crate::base::time::Instant;

/// Microseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMicros(pub u64);

/// What both clocks said at one moment. The world's clock may be set; what is timed never depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    pub unix: UnixMicros,
    pub now: Instant,
}

impl Anchor {
    /// What the world's clock would have said at `moment`, as it stands now.
    pub fn at(&self, moment: Instant) -> UnixMicros {
        let ago = self.now.since(moment).as_micros();
        let ago = u64::try_from(ago).unwrap_or(u64::MAX);
        let ahead = moment.since(self.now).as_micros();
        let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
        UnixMicros(self.unix.0.saturating_sub(ago).saturating_add(ahead))
    }
}

pub const BYTES: usize = 27;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
/// The last microsecond of the year 9999.
const LAST: u64 = 253_402_300_800 * SECOND - 1;

/// As text; what is behind the year 9999 as its last moment.
pub fn write(at: UnixMicros) -> [u8; BYTES] {
    let micros = at.0.min(LAST);
    let (year, month, day) = civil(micros / DAY);
    let second = micros % DAY / SECOND;
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let parts = [
        (0, 4, year),
        (5, 2, month),
        (8, 2, day),
        (11, 2, second / 3600),
        (14, 2, second / 60 % 60),
        (17, 2, second % 60),
        (20, 6, micros % SECOND),
    ];
    for (from, len, mut number) in parts {
        for place in text[from..from + len].iter_mut().rev() {
            *place = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
    text
}

/// Exactly what [`write`] writes; `None` for anything else.
pub fn parse(text: &[u8]) -> Option<UnixMicros> {
    let number = |from: usize, len: usize| {
        let digits = text.get(from..from + len)?;
        digits.iter().try_fold(0u64, |n, b| {
            b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0'))
        })
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let seconds = number(11, 2)? * 3600 + number(14, 2)? * 60 + number(17, 2)?;
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let micros = days(year, month, day) * DAY + seconds * SECOND + number(20, 6)?;
    let at = UnixMicros(micros);
    // The 31st of a shorter month, a 61st second and other separators are not what would be written.
    (text == write(at)).then_some(at)
}

/// The date of a day since 1970, by counting from March so that the leap day comes last (Howard Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms").
fn civil(day: u64) -> (u64, u64, u64) {
    let days = day + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// The other way round.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(micros: u64) -> String {
        String::from_utf8(write(UnixMicros(micros)).to_vec()).unwrap()
    }

    #[test]
    fn known_moments() {
        let rows = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_796_057_828_123_456, "2026-11-30T16:57:08.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (LAST, "9999-12-31T23:59:59.999999Z"),
            (u64::MAX, "9999-12-31T23:59:59.999999Z"),
        ];
        for (micros, text) in rows {
            assert_eq!(shown(micros), text);
            assert_eq!(parse(text.as_bytes()), Some(UnixMicros(micros.min(LAST))));
        }
    }

    #[test]
    fn what_is_no_moment() {
        for text in [
            "",
            "2026-11-30T16:57:08Z",
            "2026-11-31T16:57:08.123456Z",
            "2026-02-29T16:57:08.123456Z",
            "2026-13-01T16:57:08.123456Z",
            "2026-00-01T16:57:08.123456Z",
            "2026-01-01T24:00:00.000000Z",
            "2026-01-01T00:60:00.000000Z",
            "2026-01-01 00:00:00.000000Z",
            "1969-12-31T23:59:59.999999Z",
            "2026-01-01T00:00:00.00000\u{663}",
            "2026-01-01T00:00:00.000000Zx",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn an_anchor_reaches_both_ways() {
        let anchor = Anchor {
            unix: UnixMicros(5_000_000),
            now: Instant::from_nanos(2_000_000_000),
        };
        let at = |ns| anchor.at(Instant::from_nanos(ns)).0;
        assert_eq!(at(2_000_000_000), 5_000_000);
        assert_eq!(at(1_999_999_000), 4_999_999);
        assert_eq!(at(3_000_000_000), 6_000_000);
        assert_eq!(at(0), 3_000_000);
    }

    proptest! {
        #[test]
        fn text_and_back(micros in 0..=LAST, other in 0..=LAST) {
            prop_assert_eq!(parse(&write(UnixMicros(micros))), Some(UnixMicros(micros)));
            let sorts = write(UnixMicros(micros)).cmp(&write(UnixMicros(other)));
            prop_assert_eq!(sorts, micros.cmp(&other));
        }
    }
}
