//! Rows as a table in Markdown, and as comma-separated values.

use std::fmt::Write;

use super::Row;

pub fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "trace,load,policy,seats,capacity_rps,offered_rps,admitted,in_ttft,in_tpot,goodput_rps,ttft_p50_s,ttft_p99_s,tpot_p99_s,\
         projection_error,cached,all_knowing\n",
    );
    for row in rows {
        let s = &row.summary;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{},{},\"{}\",{},{:.2},{:.2},{},{:.4},{:.4},{:.2},{:.4},{:.4},{:.5},{:.4},{:.4},{:.4}",
            row.trace,
            row.load,
            row.policy,
            row.seats,
            row.capacity,
            row.offered,
            s.admitted,
            s.in_ttft,
            s.in_tpot,
            s.goodput,
            s.ttft_p50_s,
            s.ttft_p99_s,
            s.tpot_p99_s,
            s.projection_error,
            s.cached,
            row.all_knowing,
        );
    }
    out
}

pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| trace | load | policy | offered/s | admitted | in TTFT | in TPOT | goodput/s | TTFT p50 | p99 | error of the projection | cached | of all-knowing |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let s = &row.summary;
        let admitted = s.admitted as f64 / (s.offered as f64).max(1.0);
        let _ = writeln!(
            out,
            "| {} | {} × | {} | {:.1} | {:.0} % | {:.1} % | {:.1} % | {:.1} | {:.0} ms | {:.0} ms | {:.1} % | {} |",
            row.trace,
            row.load,
            row.policy,
            row.offered,
            100.0 * admitted,
            100.0 * s.in_ttft,
            100.0 * s.in_tpot,
            s.goodput,
            1e3 * s.ttft_p50_s,
            1e3 * s.ttft_p99_s,
            100.0 * s.projection_error,
            cached(row),
        );
    }
    out
}

fn cached(row: &Row) -> String {
    if row.all_knowing == 0.0 {
        return "– | –".into();
    }
    let part = row.summary.cached;
    format!(
        "{:.1} % | {:.0} %",
        100.0 * part,
        100.0 * part / row.all_knowing
    )
}

/// Goodput of all policies in one line a trace and load.
pub fn side_by_side(rows: &[Row]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let mut out = format!("| trace | load | offered/s | {} |\n", policies.join(" | "));
    out.push_str(&"|---".repeat(3 + policies.len()));
    out.push_str("|\n");
    for first in rows.iter().filter(|row| row.policy == policies[0]) {
        let _ = write!(
            out,
            "| {} | {} × | {:.1} |",
            first.trace, first.load, first.offered
        );
        for policy in &policies {
            let same = |row: &&Row| row.trace == first.trace && row.load == first.load;
            let row = rows.iter().filter(same).find(|row| row.policy == *policy);
            let cell = row.map_or("–".into(), |row| format!("{:.1}", row.summary.goodput));
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
    }
    out
}
