//! Tests of generated tables and images.

use super::*;

const FILE: &str = "benches/results/2026-11-28-0123abcd-host.json";

/// Returns results of two runs with a compared row and a row without a raw technique.
fn results(ratios: [f64; 2]) -> String {
    let run = |ratio: f64| {
        format!(
            r#"{{"machine": {{"cpu": "CPU", "cpus": 2, "kernel": "Linux", "gpus": null, "load": {ratio}}},
               "quick": false, "rows": [
               {{"id": "a.b", "what": "open", "raw_technique": "mmap", "unit": "nanoseconds",
                 "statistic": "p50", "ours": {{"p50": {}, "p99": 9, "samples": 3}},
                 "raw": {{"p50": 100, "p99": 9, "samples": 3}}, "ratio": {ratio}, "overhead": 1,
                 "target": {{"kind": "at_most_times_raw", "bound": 1.5}},
                 "verdict": "{}", "note": null}},
               {{"id": "c", "what": "signal", "raw_technique": "none", "unit": "nanoseconds",
                 "statistic": "p99", "ours": {{"p50": 1, "p99": 5, "samples": 3}}, "raw": null,
                 "ratio": null, "overhead": null, "target": {{"kind": "none"}},
                 "verdict": "information", "note": null}}]}}"#,
            100.0 * ratio,
            if ratio <= 1.5 { "reached" } else { "missed" },
        )
    };
    format!(
        r#"{{"command": "cargo xtask bench host", "date": "2026-11-28", "commit": "0123abcd",
            "peers": {{"iceoryx2": "0.9"}}, "runs": [{}, {}]}}"#,
        run(ratios[0]),
        run(ratios[1])
    )
}

fn page(marker: &str) -> Files {
    let page = format!("# Page\n<!-- {marker} -->\nold\n<!-- end of figures -->\nafter\n");
    Files::from([
        ("docs/page.md".to_owned(), page),
        (FILE.to_owned(), results([1.0, 2.0])),
    ])
}

#[test]
fn a_table_shows_medians_spread_and_origin() {
    let mut files = page("figures host.json");
    let text = generate(&files).unwrap().remove("docs/page.md").unwrap();
    for part in [
        "2026-11-28, commit 0123abcd, 2 runs",
        "CPU, 2 CPUs, Linux, load 1.0 to 2.0",
        "Versions: iceoryx2 0.9",
        "| open | 150 ns | 100 ns | 1.50 × | 1.00 × to 2.00 × | ≤ 1.5 × raw | MISSED in 1 of 2 | mmap |",
        "| signal, p99 | 5 ns | – | – | 5 ns to 5 ns | – | – | none |",
        "\nafter\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("old"));
    // The page is stale before it is written, and fresh afterwards.
    assert_eq!(faults(&files).len(), 1);
    files.insert("docs/page.md".to_owned(), text);
    assert_eq!(faults(&files), Vec::<String>::new());
    // Other results make it stale again.
    files.insert(FILE.to_owned(), results([1.0, 1.2]));
    assert_eq!(faults(&files).len(), 1);
}

#[test]
fn a_marker_chooses_rows_by_the_start_of_their_names() {
    let mut files = page("figures host.json a.");
    let example = "```text\n<!-- figures FILE.json -->\n```\n".to_owned();
    files.insert("README.md".to_owned(), example);
    let text = generate(&files).unwrap().remove("docs/page.md").unwrap();
    assert!(
        text.contains("| open") && !text.contains("| signal"),
        "{text}"
    );
}

#[test]
fn a_plot_has_an_image_for_light_and_one_for_dark_pages() {
    let files = page("bars host.json a.");
    let changed = generate(&files).unwrap();
    for theme in ["light", "dark"] {
        let name = format!("host-bars-a-{theme}.svg");
        let svg = &changed[&format!("docs/plots/{name}")];
        assert!(svg.contains(">open<") && svg.contains(">150 ns<"), "{svg}");
        assert!(changed["docs/page.md"].contains(&format!("\"plots/{name}\"")));
    }
    // No row has a size.
    let files = page("lines host.json a.");
    assert!(generate(&files).unwrap_err().contains("can show"));
}

#[test]
fn lists_have_the_rows_that_are_clearly_slower_or_faster() {
    for (ratios, slower, faster) in [([1.2, 1.4], 1, 0), ([0.5, 0.9], 0, 1), ([1.0, 1.1], 0, 0)] {
        for (kind, expected) in [("slower", slower), ("faster", faster)] {
            let mut files = page(&format!("{kind} host.json"));
            files.insert(FILE.to_owned(), results(ratios));
            let text = generate(&files).unwrap().remove("docs/page.md").unwrap();
            assert_eq!(text.matches("| open |").count(), expected, "{text}");
        }
    }
}

#[test]
fn faulty_markers_and_files_are_named() {
    let error = generate(&page("figures host.json z")).unwrap_err();
    assert!(error.contains("has nothing that"), "{error}");
    let mut files = page("figures host.json");
    let quick = results([1.0, 2.0]).replace("\"quick\": false", "\"quick\": true");
    files.insert(FILE.to_owned(), quick);
    assert!(generate(&files).unwrap_err().contains("quick"));
    let open = "<!-- figures host.json -->\n".to_owned();
    files.insert("docs/page.md".to_owned(), open);
    assert!(generate(&files).unwrap_err().contains("has no line"));
}

#[test]
fn a_suite_without_results_is_named_with_its_command() {
    let text = generate(&page("figures python-gpu.json")).unwrap();
    let text = &text["docs/page.md"];
    assert!(
        text.contains("`cargo xtask bench python gpu --record 3`"),
        "{text}"
    );
}

#[test]
fn the_newest_results_of_a_suite_are_shown() {
    let mut files = page("figures host.json a.");
    let newer = results([4.0, 4.0]).replace("2026-11-28", "2026-11-29");
    files.insert(
        "benches/results/2026-11-29-00000000-host.json".to_owned(),
        newer,
    );
    let other = results([8.0, 8.0]).replace("2026-11-28", "2026-11-30");
    files.insert(
        "benches/results/2026-11-30-00000000-host-two.json".to_owned(),
        other,
    );
    let text = generate(&files).unwrap().remove("docs/page.md").unwrap();
    assert!(
        text.contains("2026-11-29, commit") && text.contains("4.00 ×"),
        "{text}"
    );
}
