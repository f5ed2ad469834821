//! The common parts of pages for browsers.

use super::clean;

/// The style of a page, light and dark.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#ffffff;--line:#d1d9e0;--good:#116329;--bad:#a40e26}\
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--paper:#0d1117;--line:#3d444d;--good:#56d364;--bad:#ff7b72}}\
body{margin:2rem auto;max-width:72rem;padding:0 1rem;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}p.soft,td.soft{color:var(--soft)}\
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;overflow-wrap:anywhere}\
th{color:var(--soft);font-weight:600;white-space:nowrap}.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
.good{color:var(--good)}.bad{color:var(--bad)}";

/// Escapes untrusted text, so that a browser shows it literally.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in clean::line(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
