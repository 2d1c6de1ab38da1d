//! From measured points to the curves of a profile: least squares of the relative error, with coefficients that are never negative.
//!
//! An error of 10 % counts the same at 5 ms and at 5 s, so that short prompts and single streams fit too. Time never falls with
//! more work: where plain least squares says that it does, the best fit without that term is taken instead. There are three terms, so all
//! seven subsets are tried, and the best one without a negative coefficient is the optimum (a solution of the constrained problem is the
//! plain solution on the terms that it uses).
//!
//! Pure. Invariant: the coefficients of a [`Fit`] are finite and at least 0, and so are its errors.

use std::fmt;

/// `coefficients` in the order of the profile's names: `a, b, c`, or `slope, request_slope, intercept`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    pub coefficients: [f64; 3],
    /// Mean of |predicted − measured| ÷ measured.
    pub mape: f64,
    /// The same with each point predicted by a fit to the others.
    pub cv_mape: f64,
}

/// A prompt read alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillPoint {
    pub tokens: f64,
    pub seconds: f64,
}

/// Streams that ran together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePoint {
    pub requests: f64,
    pub kv_tokens: f64,
    /// From one token of a stream to its next.
    pub interval_s: f64,
}

/// Why points make no curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitFault {
    /// The place of a point that is no number, or took no time.
    Unusable(usize),
    /// Fewer different points than leaving one out needs.
    TooFew {
        what: &'static str,
        found: usize,
        least: usize,
    },
    /// The terms cannot be told apart; what to vary.
    Alike(&'static str),
}

/// Points that three terms need so that one can be left out.
pub const POINTS_MIN: usize = 4;

/// `seconds = a·n² + b·n + c`.
pub fn prefill(points: &[PrefillPoint]) -> Result<Fit, FitFault> {
    const WHAT: &str = "prompt lengths";
    let rows: Vec<Row> = points
        .iter()
        .map(|p| Row::new([p.tokens * p.tokens, p.tokens, 1.0], p.seconds))
        .collect();
    usable(&rows)?;
    enough(WHAT, distinct(points.iter().map(|p| p.tokens)), POINTS_MIN)?;
    fit(&rows, PREFILL_SHARE_MIN).ok_or(FitFault::Alike("prompt lengths that differ more"))
}

/// `interval = slope·kv + request_slope·requests + intercept`.
pub fn decode(points: &[DecodePoint]) -> Result<Fit, FitFault> {
    let rows: Vec<Row> = points
        .iter()
        .map(|p| Row::new([p.kv_tokens, p.requests, 1.0], p.interval_s))
        .collect();
    usable(&rows)?;
    enough("points", rows.len(), POINTS_MIN)?;
    let requests = distinct(points.iter().map(|p| p.requests));
    enough("numbers of requests at once", requests, 2)?;
    let alike = FitFault::Alike("several context lengths at the same number of requests");
    fit(&rows, DECODE_SHARE_MIN).ok_or(alike)
}

/// What must be left of a term, as a share, once the other two have explained what they can. Lengths are exact; KV totals are
/// means, and those of one context length differ a little from its multiples.
const PREFILL_SHARE_MIN: f64 = 1e-3;
const DECODE_SHARE_MIN: f64 = 0.03;

/// One point, divided by what was measured: the terms then add up to 1.
#[derive(Clone, Copy, Debug)]
struct Row {
    terms: [f64; 3],
    usable: bool,
}

impl Row {
    fn new(terms: [f64; 3], measured: f64) -> Row {
        let terms_ok = terms.iter().all(|t| t.is_finite() && *t > 0.0);
        let terms = terms.map(|term| term / measured);
        Row {
            terms,
            usable: terms_ok && measured > 0.0 && terms.iter().all(|t| t.is_finite() && *t < 1e100),
        }
    }

    /// Predicted ÷ measured − 1.
    fn error(&self, coefficients: &[f64; 3]) -> f64 {
        let sum: f64 = self
            .terms
            .iter()
            .zip(coefficients)
            .map(|(t, c)| t * c)
            .sum();
        sum - 1.0
    }
}

fn usable(rows: &[Row]) -> Result<(), FitFault> {
    match rows.iter().position(|row| !row.usable) {
        Some(at) => Err(FitFault::Unusable(at)),
        None => Ok(()),
    }
}

fn enough(what: &'static str, found: usize, least: usize) -> Result<(), FitFault> {
    if found < least {
        return Err(FitFault::TooFew { what, found, least });
    }
    Ok(())
}

fn distinct(values: impl Iterator<Item = f64>) -> usize {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values.len()
}

/// `None` when a term is nearly a sum of the others.
fn fit(rows: &[Row], share_min: f64) -> Option<Fit> {
    if (0..3).any(|term| share(rows, term) < share_min) {
        return None;
    }
    let coefficients = best(rows);
    let mean = |errors: f64| errors / rows.len() as f64;
    let errors = rows.iter().map(|row| row.error(&coefficients).abs());
    let left_out = (0..rows.len()).map(|out| {
        let mut others = rows.to_vec();
        let row = others.swap_remove(out);
        row.error(&best(&others)).abs()
    });
    Some(Fit {
        coefficients,
        mape: mean(errors.sum()),
        cv_mape: mean(left_out.sum()),
    })
}

/// The best coefficients of all subsets of terms in which none is negative. Each term alone is such a subset.
fn best(rows: &[Row]) -> [f64; 3] {
    const SUBSETS: [&[usize]; 7] = [&[0, 1, 2], &[0, 1], &[0, 2], &[1, 2], &[0], &[1], &[2]];
    let mut best = ([0.0; 3], f64::INFINITY);
    for terms in SUBSETS {
        let Some(found) = solve(rows, terms).filter(|c| c.iter().all(|c| *c >= 0.0)) else {
            continue;
        };
        let squares = rows.iter().map(|row| row.error(&found).powi(2)).sum();
        if squares < best.1 {
            best = (found, squares);
        }
    }
    best.0
}

/// Least squares on some terms, by orthogonal columns; `None` when they depend on each other.
fn solve(rows: &[Row], terms: &[usize]) -> Option<[f64; 3]> {
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(3);
    // upper[i][j]: how much of basis i is in term j.
    let mut upper = [[0.0; 3]; 3];
    for (j, term) in terms.iter().enumerate() {
        let mut column: Vec<f64> = rows.iter().map(|row| row.terms[*term]).collect();
        let whole = length(&column);
        orthogonal(&mut column, &basis, |i, part| upper[i][j] += part);
        let rest = length(&column);
        if rest.is_nan() || rest <= whole * 1e-9 {
            return None;
        }
        upper[j][j] = rest;
        column.iter_mut().for_each(|x| *x /= rest);
        basis.push(column);
    }
    // The target is 1 in every row; back substitution.
    let mut found = [0.0; 3];
    for i in (0..terms.len()).rev() {
        let mut value: f64 = basis[i].iter().sum();
        for j in i + 1..terms.len() {
            value -= upper[i][j] * found[terms[j]];
        }
        found[terms[i]] = value / upper[i][i];
    }
    found.iter().all(|c| c.is_finite()).then_some(found)
}

/// What the other terms cannot explain of a term, as a share of it.
fn share(rows: &[Row], term: usize) -> f64 {
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(2);
    let others = (0..3).filter(|other| *other != term).chain([term]);
    let mut rest = 0.0;
    for other in others {
        let mut column: Vec<f64> = rows.iter().map(|row| row.terms[other]).collect();
        let whole = length(&column);
        orthogonal(&mut column, &basis, |_, _| {});
        let left = length(&column);
        rest = left / whole;
        if left > whole * 1e-9 {
            column.iter_mut().for_each(|x| *x /= left);
            basis.push(column);
        }
    }
    rest
}

/// Takes out of `column` what lies along the basis: modified Gram-Schmidt, twice, since once leaves rounding behind.
fn orthogonal(column: &mut [f64], basis: &[Vec<f64>], mut taken: impl FnMut(usize, f64)) {
    for _ in 0..2 {
        for (i, unit) in basis.iter().enumerate() {
            let part: f64 = column.iter().zip(unit).map(|(x, u)| x * u).sum();
            column
                .iter_mut()
                .zip(unit)
                .for_each(|(x, u)| *x -= part * u);
            taken(i, part);
        }
    }
}

fn length(column: &[f64]) -> f64 {
    column.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The middle one; of an even number the mean of the two. 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

impl fmt::Display for FitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FitFault::Unusable(at) => write!(f, "point {at} is no measurement (0, or no number)"),
            FitFault::TooFew { what, found, least } => {
                write!(f, "{found} different {what}, at least {least} are needed")
            }
            FitFault::Alike(vary) => write!(f, "the terms cannot be told apart; measure {vary}"),
        }
    }
}

#[cfg(test)]
mod tests;
