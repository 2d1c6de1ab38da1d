//! Goodput over load, one small plot a trace, as SVG.

use std::fmt::Write;

use super::Row;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 200.0;
const MARGIN: f64 = 44.0;
/// Of policies, in the order of the rows.
const COLOURS: [&str; 5] = ["#0b6e4f", "#c8553d", "#3d5a98", "#b8860b", "#999999"];

pub fn goodput(rows: &[Row]) -> String {
    let traces = distinct(rows.iter().map(|row| row.trace));
    let policies = distinct(rows.iter().map(|row| row.policy));
    let (columns, cell_h) = (traces.len().clamp(1, 3), HEIGHT + 2.0 * MARGIN);
    let cell_w = WIDTH + MARGIN + 20.0;
    let lines = traces.len().div_ceil(columns);
    let (w, h) = (cell_w * columns as f64 + 20.0, cell_h * lines as f64 + 30.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"white\"/>\n"
    );
    for (i, policy) in policies.iter().enumerate() {
        let x = MARGIN + 160.0 * i as f64;
        let colour = COLOURS[i % COLOURS.len()];
        put(
            &mut out,
            format_args!(
                "<rect x=\"{x}\" y=\"10\" width=\"14\" height=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"16\">{policy}</text>",
                x + 20.0
            ),
        );
    }
    for (i, trace) in traces.iter().enumerate() {
        let x = MARGIN + cell_w * (i % columns) as f64;
        let y = MARGIN + 14.0 + cell_h * (i / columns) as f64;
        let of_trace: Vec<&Row> = rows.iter().filter(|row| row.trace == *trace).collect();
        put(
            &mut out,
            format_args!("<g transform=\"translate({x} {y})\">"),
        );
        one(&mut out, trace, &of_trace, &policies);
        put(&mut out, format_args!("</g>"));
    }
    out.push_str("</svg>\n");
    out
}

fn one(out: &mut String, trace: &str, rows: &[&Row], policies: &[&str]) {
    let most = |of: fn(&Row) -> f64| rows.iter().map(|row| of(row)).fold(0.0, f64::max);
    let load_max = most(|row| row.load);
    let capacity = most(|row| row.capacity);
    let top = (most(|row| row.summary.goodput).max(capacity) / 20.0).ceil() * 20.0;
    let at = |load: f64, goodput: f64| (WIDTH * load / load_max, HEIGHT - HEIGHT * goodput / top);
    put(
        out,
        format_args!(
            "<text x=\"0\" y=\"-8\" font-weight=\"bold\">{trace}: requests within both targets, a second</text>\
             <path d=\"M0 0V{HEIGHT}H{WIDTH}\" fill=\"none\" stroke=\"black\"/>"
        ),
    );
    for step in 0..=4 {
        let goodput = top * f64::from(step) / 4.0;
        let (_, y) = at(0.0, goodput);
        put(
            out,
            format_args!(
                "<path d=\"M0 {y}H{WIDTH}\" stroke=\"#ddd\"/><text x=\"-6\" y=\"{}\" text-anchor=\"end\">{goodput:.0}</text>",
                y + 4.0
            ),
        );
    }
    let (_, y) = at(0.0, capacity);
    put(
        out,
        format_args!("<path d=\"M0 {y}H{WIDTH}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>"),
    );
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.dedup();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    for load in loads {
        let (x, _) = at(load, 0.0);
        put(
            out,
            format_args!(
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{load} ×</text>",
                HEIGHT + 16.0
            ),
        );
    }
    for (i, policy) in policies.iter().enumerate() {
        let points = rows.iter().filter(|row| row.policy == *policy);
        let points: Vec<String> = points
            .map(|row| at(row.load, row.summary.goodput))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        put(
            out,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                points.join(" "),
                COLOURS[i % COLOURS.len()]
            ),
        );
    }
}

fn put(out: &mut String, what: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{what}");
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out = Vec::new();
    for name in names {
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}
