//! What is printed of a fit: the curve, how far off it is, and what it rests on; on standard output.

use crate::fleet::measure::fit::{DecodePoint, Fit, PrefillPoint};

/// `iid: prefill …`
pub fn prefill(iid: &str, points: &[PrefillPoint], fit: &Fit) {
    let [a, b, c] = fit.coefficients;
    let (least, most) = range(points.iter().map(|p| p.tokens));
    println!("{iid}: prefill seconds = {a:.4e}·n² + {b:.4e}·n + {c:.4e}");
    println!(
        "{iid}:   {} prompt lengths, {least} to {most} tokens; {}",
        points.len(),
        errors(fit)
    );
}

/// `iid: decode …`
pub fn decode(iid: &str, points: &[DecodePoint], fit: &Fit) {
    let [slope, request_slope, intercept] = fit.coefficients;
    let requests = range(points.iter().map(|p| p.requests));
    let kv = range(points.iter().map(|p| p.kv_tokens));
    println!(
        "{iid}: decode interval = {slope:.4e}·kv + {request_slope:.4e}·requests + {intercept:.4e}"
    );
    println!(
        "{iid}:   {} points, {} to {} requests, {:.0} to {:.0} KV tokens; {}",
        points.len(),
        requests.0,
        requests.1,
        kv.0,
        kv.1,
        errors(fit)
    );
}

fn errors(fit: &Fit) -> String {
    let [off, left_out] = [fit.mape, fit.cv_mape].map(|e| e * 100.0);
    format!("off by {off:.2} % on average, {left_out:.2} % leaving one out")
}

fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    (least, values.fold(0.0, f64::max))
}
