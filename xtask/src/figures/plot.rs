//! Plots of results as SVG: one bar for each row's ratio, with the spread over the runs.

use std::fmt::Write as _;

use bench_report::{Record, Row, spread, times};

const LINE: f64 = 26.0;
const LABELS: f64 = 430.0;
const BARS: f64 = 330.0;
const VALUES: f64 = 90.0;

/// Draws the rows that have a ratio to the raw technique. The axis is logarithmic.
pub(super) fn svg(record: &Record, rows: &[Vec<&Row>]) -> String {
    let bars: Vec<_> = rows.iter().filter_map(|runs| Bar::of(runs)).collect();
    let (mut low, mut high) = (0.5_f64, 2.0_f64);
    for bar in &bars {
        (low, high) = (low.min(bar.low), high.max(bar.high));
    }
    let place = |ratio: f64| LABELS + BARS * (ratio / low).ln() / (high / low).ln();
    let (width, height) = (LABELS + BARS + VALUES, LINE * (bars.len() as f64 + 2.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\">Time compared with the raw technique (1 is equal), {}, commit {}</text>\n",
        escaped(&record.date),
        escaped(&record.commit),
    );
    for (number, bar) in bars.iter().enumerate() {
        let top = LINE * (number as f64 + 1.0) + 6.0;
        let (from, to) = (
            place(1.0).min(place(bar.middle)),
            place(1.0).max(place(bar.middle)),
        );
        let fill = if bar.middle <= 1.0 {
            "#2a7f62"
        } else {
            "#c0703a"
        };
        let (middle, text) = (top + LINE / 2.0 - 4.0, top + LINE / 2.0);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>\n\
             <path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"black\"/>\n\
             <text x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
            LABELS - 8.0,
            escaped(bar.what),
            (to - from).max(1.0),
            LINE - 8.0,
            place(bar.low),
            place(bar.high),
            LABELS + BARS + 8.0,
            times(bar.middle),
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{one:.1} {LINE}V{:.1}\" stroke=\"#888\"/>\n</svg>",
        height - LINE,
        one = place(1.0),
    );
    svg
}

struct Bar<'a> {
    what: &'a str,
    low: f64,
    middle: f64,
    high: f64,
}

impl<'a> Bar<'a> {
    fn of(runs: &[&'a Row]) -> Option<Self> {
        let ratios = runs.iter().filter_map(|row| row.ratio);
        let [low, middle, high] = spread(ratios.filter(|ratio| *ratio > 0.0))?;
        Some(Self {
            what: &runs.first()?.what,
            low,
            middle,
            high,
        })
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
