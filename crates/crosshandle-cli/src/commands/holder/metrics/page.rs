//! The page for browsers. It has no scripts, and the browser reloads it periodically.

use super::sample::Sample;
use crate::output::html::{STYLE, escape};
use crate::units::{age, bytes};
use std::fmt::Write;
use std::time::SystemTime;

/// Maximum number of rows in each table of the page. Without a limit, browsers would take too long
/// to show the page of a full holder.
const METRICS_ROWS: usize = 500;

/// The text of a table cell, and `true` if it is a number.
type Cell = (String, bool);

fn words(text: &str) -> Cell {
    (text.to_owned(), false)
}

fn number(number: impl ToString) -> Cell {
    (number.to_string(), true)
}

fn table(
    page: &mut String,
    title: &str,
    heads: &[(&str, bool)],
    rows: impl ExactSizeIterator<Item = Vec<Cell>>,
    nothing: &str,
) {
    let _ = write!(page, "<section><h2>{}</h2>", escape(title));
    let count = rows.len();
    if count == 0 {
        let _ = write!(page, "<p class=soft>{}</p></section>", escape(nothing));
        return;
    }
    let class = |is_number: bool| if is_number { " class=n" } else { "" };
    page.push_str("<table><thead><tr>");
    for (head, is_number) in heads {
        let _ = write!(
            page,
            "<th scope=col{}>{}</th>",
            class(*is_number),
            escape(head)
        );
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows.take(METRICS_ROWS) {
        page.push_str("<tr>");
        for (text, is_number) in row {
            let _ = write!(page, "<td{}>{}</td>", class(is_number), escape(&text));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table>");
    if count > METRICS_ROWS {
        let _ = write!(
            page,
            "<p class=soft>… and {} more</p>",
            count - METRICS_ROWS
        );
    }
    page.push_str("</section>");
}

pub(super) fn html(sample: &Sample) -> String {
    let status = &sample.status;
    let (class, state) = match status.is_safe {
        true => ("good", "all that is held outlives this process".to_owned()),
        false => ("bad", super::super::hold::why_unsafe(status)),
    };
    let mut page = format!(
        "<!DOCTYPE html><html lang=en><head><meta charset=utf-8><title>Crosshandle: what is held</title>\
         <meta name=viewport content=\"width=device-width\"><meta http-equiv=refresh content=2>\
         <link rel=icon href=\"data:,\"><style>{STYLE}</style></head><body><main><h1>Process {} holds {} under {} name(s)</h1>\
         <p class={class}>{}</p><p class=soft>{}, {} takeover(s), {} refusal(s), {} reader(s) attached, {} died, \
         {} name(s) lost</p>",
        status.pid,
        escape(&bytes(status.bytes)),
        status.names,
        escape(&state),
        match status.successor {
            Some(pid) => format!("process {pid} is the successor"),
            None => "no successor".into(),
        },
        status.takeovers,
        sample.refusals,
        sample.importers,
        sample.deaths,
        status.lost,
    );
    let names = sample.names.iter().map(|name| {
        let held = &name.held;
        let mut devices: Vec<_> = held.parts.iter().map(|part| &*part.device).collect();
        devices.dedup();
        let mut state = Vec::new();
        state.extend(held.pinned.then(|| "pinned".to_owned()));
        state.extend(held.has_tokens.then(|| "token".to_owned()));
        state.extend((held.epoch > 0).then(|| format!("epoch {}", held.epoch)));
        vec![
            words(&held.name),
            number(held.version),
            number(bytes(name.held.bytes())),
            number(name.readers),
            words(&devices.join(", ")),
            words(&state.join(", ")),
            words(&held.label),
        ]
    });
    let heads = [
        ("name", false),
        ("version", true),
        ("bytes", true),
        ("readers", true),
        ("device", false),
        ("state", false),
        ("label", false),
    ];
    table(&mut page, "Names", &heads, names, "nothing is held");
    let waits = sample.waits.iter().map(|wait| vec![words(wait)]);
    let heads = [("who waits, and for whom", false)];
    table(
        &mut page,
        "Waits",
        &heads,
        waits,
        "no thread waits for a signal",
    );
    let deaths = sample.recent_deaths.iter().map(|death| {
        let ago = SystemTime::now().duration_since(death.when);
        vec![
            number(format!("{} ago", age(ago.unwrap_or_default()))),
            words(&death.who),
            words(&death.names),
        ]
    });
    let heads = [("when", true), ("process", false), ("had open", false)];
    let nothing = "no reader has died since this page was first asked for";
    table(&mut page, "Recent deaths", &heads, deaths, nothing);
    page.push_str("</main></body></html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn no_text_becomes_markup() {
        let hostile = "<script>alert('x')</script>&\"\u{202e}\u{1b}";
        let escaped = escape(hostile);
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}\u{fffd}"
        );
    }
}
