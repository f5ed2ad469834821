//! Plots of results as SVG, one for light and one for dark pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bench_report::{At, Record, Row, Unit, spread};

/// What a plot shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A bar for each result. Results of the same operation are next to each other.
    Bars,
    /// The time against the size.
    Lines,
    /// The bytes per second against the size.
    Bandwidth,
}

impl Kind {
    /// Describes the plot for readers who cannot see it.
    pub(super) fn describes(self) -> &'static str {
        match self {
            Self::Bars => "Results as bars; the tables have the same figures",
            Self::Lines => "Time against size; the tables have the same figures",
            Self::Bandwidth => "Bandwidth against size; the tables have the same figures",
        }
    }
}

/// The colours of a plot.
struct Theme {
    name: &'static str,
    back: &'static str,
    text: &'static str,
    grid: &'static str,
    ours: &'static str,
    others: [&'static str; 4],
}

const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        back: "#ffffff",
        text: "#1f2328",
        grid: "#d0d7de",
        ours: "#0f766e",
        others: ["#b45309", "#6d5aa8", "#64748b", "#9f1239"],
    },
    Theme {
        name: "dark",
        back: "#0d1117",
        text: "#e6edf3",
        grid: "#30363d",
        ours: "#2dd4bf",
        others: ["#fbbf24", "#b9a5ff", "#94a3b8", "#fda4af"],
    },
];

const OURS: &str = "Crosshandle";
const WIDTH: f64 = 860.0;

/// Draws rows, once for each theme. Returns the names of the themes with the images, and `None` if
/// there is nothing to draw.
pub(super) fn svgs(
    kind: Kind,
    record: &Record,
    rows: &[Vec<&Row>],
) -> Option<Vec<(&'static str, String)>> {
    let caption = format!(
        "{}, commit {}, median of {} runs, {}",
        record.date,
        record.commit,
        record.runs.len(),
        record.machine()
    );
    let drawn = |theme: &Theme| {
        let (body, height) = match kind {
            Kind::Bars => bars(theme, rows)?,
            Kind::Lines => lines(theme, rows, false)?,
            Kind::Bandwidth => lines(theme, rows, true)?,
        };
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{}\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{}\"/>\n\
             {body}<text x=\"12\" y=\"{:.0}\" font-size=\"11\" opacity=\"0.75\">{}</text>\n</svg>\n",
            theme.text,
            theme.back,
            height - 10.0,
            escaped(&caption),
        );
        Some((theme.name, svg))
    };
    THEMES.iter().map(drawn).collect()
}

/// A position on an axis that is logarithmic, or starts at zero.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    length: f64,
    is_logarithmic: bool,
}

impl Axis {
    /// An axis for positive values. It is logarithmic if they differ by more than a factor of 12.
    fn new(values: &[f64], start: f64, length: f64) -> Option<Self> {
        let [low, _, high] = spread(values.iter().copied())?;
        let is_logarithmic = high > 12.0 * low;
        let (from, to) = match is_logarithmic {
            true => (10_f64.powf(low.log10().floor()), high * 1.15),
            false => (0.0, high * 1.05),
        };
        Some(Self {
            from,
            to,
            start,
            length,
            is_logarithmic,
        })
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.is_logarithmic {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + self.length * share
    }

    fn ticks(&self) -> Vec<f64> {
        match self.is_logarithmic {
            true => {
                let powers = std::iter::successors(Some(self.from), |tick| Some(tick * 10.0));
                powers.take_while(|tick| *tick <= self.to).collect()
            }
            false => {
                let step = 10_f64.powf((self.to / 2.0).log10().floor());
                let step = if self.to / step > 5.0 {
                    2.0 * step
                } else {
                    step
                };
                let ticks = (0..8).map(|number| f64::from(number) * step);
                ticks.take_while(|tick| *tick <= self.to).collect()
            }
        }
    }
}

const LINE: f64 = 21.0;
const LABELS: f64 = 400.0;

/// The results of one operation: its title, their unit, and each technique with its lowest value,
/// median and highest value.
type Group<'a> = (String, Unit, Vec<(&'a str, [f64; 3])>);

/// A size, with the lowest value, the median and the highest value.
type Point = (f64, [f64; 3]);

/// Draws a bar for each result. Returns the drawing and the height of the image.
fn bars(theme: &Theme, rows: &[Vec<&Row>]) -> Option<(String, f64)> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for runs in rows {
        let Some(row) = runs.first() else { continue };
        let ours = spread(runs.iter().filter_map(|row| row.value(row.ours)));
        let raw = spread(runs.iter().filter_map(|row| row.value(row.raw)));
        let (Some(ours), Some(raw)) = (ours, raw) else {
            continue;
        };
        let peer = (row.raw_technique.as_str(), raw);
        match groups.iter_mut().find(|(title, ..)| *title == row.title()) {
            Some((.., bars)) => bars.push(peer),
            None => groups.push((row.title(), row.unit, vec![(OURS, ours), peer])),
        }
    }
    let values = groups
        .iter()
        .flat_map(|(.., bars)| bars)
        .map(|(_, [_, middle, _])| *middle);
    let axis = Axis::new(&values.collect::<Vec<_>>(), LABELS, WIDTH - LABELS - 90.0)?;
    let unit = groups.first()?.1;
    let (mut drawn, mut top) = (String::new(), 30.0);
    for (title, unit, bars) in &groups {
        top += LINE * 1.3;
        let _ = writeln!(
            drawn,
            "<text x=\"12\" y=\"{:.0}\" font-weight=\"600\">{}</text>",
            top - 6.0,
            escaped(title)
        );
        for (number, (name, [low, middle, high])) in bars.iter().enumerate() {
            let fill = match number {
                0 => theme.ours,
                _ => theme.others[(number - 1) % theme.others.len()],
            };
            let (text, line) = (top + 14.0, top + LINE / 2.0 - 1.0);
            let _ = writeln!(
                drawn,
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\" font-size=\"12\">{}</text>\n\
                 <rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>\n\
                 <path d=\"M{:.1} {line:.1}H{:.1}\" stroke=\"{}\"/>\n\
                 <text x=\"{:.1}\" y=\"{text:.1}\" font-size=\"12\">{}</text>",
                LABELS - 8.0,
                escaped(&shortened(name)),
                top + 2.0,
                (axis.place(*middle) - LABELS).max(1.0),
                LINE - 6.0,
                axis.place(*low),
                axis.place(*high),
                theme.text,
                axis.place(high.max(*middle)) + 6.0,
                unit.show(*middle),
            );
            top += LINE;
        }
    }
    let mut grid = String::new();
    for tick in axis.ticks() {
        let x = axis.place(tick);
        let _ = writeln!(
            grid,
            "<path d=\"M{x:.1} 28V{top:.0}\" stroke=\"{}\"/>\n\
             <text x=\"{x:.1}\" y=\"20\" text-anchor=\"middle\" font-size=\"11\">{}</text>",
            theme.grid,
            if tick == 0.0 {
                "0".to_owned()
            } else {
                unit.show(tick)
            },
        );
    }
    Some((grid + &drawn, top + 34.0))
}

/// Draws the results against the size. Returns the drawing and the height of the image.
fn lines(theme: &Theme, rows: &[Vec<&Row>], is_bandwidth: bool) -> Option<(String, f64)> {
    let (left, right, top, bottom) = (84.0, 240.0, 24.0, 300.0);
    let mut series: BTreeMap<(bool, &str), Vec<Point>> = BTreeMap::new();
    let mut sizes: Vec<At> = Vec::new();
    let mut unit = Unit::Nanoseconds;
    for runs in rows {
        let Some((row, at)) = runs.first().and_then(|row| Some((*row, row.at?))) else {
            continue;
        };
        unit = row.unit;
        let size = match at {
            At::Bytes(size) | At::Objects(size) => size as f64,
        };
        let shown = |time: f64| if is_bandwidth { size / time } else { time };
        let ours = spread(runs.iter().filter_map(|row| row.value(row.ours)).map(shown));
        let raw = spread(runs.iter().filter_map(|row| row.value(row.raw)).map(shown));
        let (Some(ours), Some(raw)) = (ours, raw) else {
            continue;
        };
        series.entry((false, OURS)).or_default().push((size, ours));
        series
            .entry((true, &row.raw_technique))
            .or_default()
            .push((size, raw));
        sizes.push(at);
    }
    sizes.sort_unstable_by_key(|at| match at {
        At::Bytes(size) | At::Objects(size) => *size,
    });
    sizes.dedup();
    let all = series.values().flatten();
    let values: Vec<_> = all.clone().flat_map(|(_, values)| *values).collect();
    let widths: Vec<_> = all.map(|(size, _)| *size).collect();
    let [narrow, _, wide] = spread(widths.iter().copied())?;
    let place = |size: f64| {
        let share = (size / narrow).ln() / (wide / narrow).ln().max(f64::MIN_POSITIVE);
        left + 14.0 + (WIDTH - left - right - 28.0) * share
    };
    // Higher values are further up.
    let axis = Axis::new(&values, bottom, top - bottom)?;
    let mut drawn = String::new();
    for tick in axis.ticks() {
        let y = axis.place(tick);
        let label = match (tick == 0.0, is_bandwidth) {
            (true, _) => "0".to_owned(),
            (false, true) => format!("{tick} GB/s"),
            (false, false) => unit.show(tick),
        };
        let _ = writeln!(
            drawn,
            "<path d=\"M{left} {y:.1}H{:.0}\" stroke=\"{}\"/>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\">{label}</text>",
            WIDTH - right,
            theme.grid,
            left - 8.0,
            y + 4.0,
        );
    }
    for at in &sizes {
        let (size, label) = match at {
            At::Bytes(size) => (*size as f64, bytes(*size)),
            At::Objects(size) => (*size as f64, format!("{size} objects")),
        };
        let _ = writeln!(
            drawn,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"11\">{label}</text>",
            place(size),
            bottom + 18.0,
        );
    }
    let mut used: Vec<f64> = Vec::new();
    for (number, ((_, name), points)) in series.iter().enumerate() {
        let colour = match number {
            0 => theme.ours,
            _ => theme.others[(number - 1) % theme.others.len()],
        };
        let at = |(size, [_, middle, _]): &Point| {
            format!("{:.1} {:.1}", place(*size), axis.place(*middle))
        };
        let path: Vec<_> = points.iter().map(at).collect();
        let _ = writeln!(
            drawn,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>",
            path.join("L")
        );
        for (size, [low, middle, high]) in points {
            let x = place(*size);
            let _ = writeln!(
                drawn,
                "<path d=\"M{x:.1} {:.1}V{:.1}\" stroke=\"{colour}\"/>\n\
                 <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                axis.place(*low),
                axis.place(*high),
                axis.place(*middle),
            );
        }
        let end = points
            .last()
            .map_or(bottom, |(_, [_, middle, _])| axis.place(*middle));
        // Labels must not overlap.
        let mut y = end;
        while used.iter().any(|other| (other - y).abs() < 32.0) {
            y += 4.0;
        }
        used.push(y);
        for (line, words) in wrapped(name).iter().enumerate() {
            let _ = writeln!(
                drawn,
                "<text x=\"{:.0}\" y=\"{:.1}\" fill=\"{colour}\" font-weight=\"600\" font-size=\"12\">{}</text>",
                WIDTH - right + 8.0,
                y + 4.0 + 15.0 * line as f64,
                escaped(words),
            );
        }
    }
    Some((drawn, bottom + 54.0))
}

fn bytes(size: u64) -> String {
    match size {
        size if size >= 1 << 30 => format!("{} GiB", size >> 30),
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} bytes"),
    }
}

/// Maximum number of characters of a label next to a bar.
const LABEL: usize = 60;

fn shortened(name: &str) -> String {
    match name.chars().count() > LABEL {
        true => name.chars().take(LABEL - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// Splits a label into lines.
fn wrapped(name: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 30 => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
