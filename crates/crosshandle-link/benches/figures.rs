//! Measures a link over UCX, a link over TLS, and plain UCX. Two processes run in two network
//! namespaces that a pair of virtual network devices (veth) connects. Run `cargo bench -p
//! crosshandle-link` as root, with UCX in `CROSSHANDLE_UCX`. An argument, as in `cargo bench -p
//! crosshandle-link -- 5`, is the number of repetitions.

#[allow(dead_code)]
#[path = "../tests/two_hosts/hosts.rs"]
mod hosts;

use hosts::{Hosts, Peer};

const TOKEN: &str = "xhlink-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const MIB: usize = 1 << 20;

/// The measurements: name, request, repetitions, and bytes.
const FIGURES: [(&str, &str, usize, usize); 3] = [
    ("write of 64 B + signal, there and back", "ping", 5_000, 64),
    ("write of 64 MiB", "write", 20, 64 * MIB),
    ("10,000 reads of 64 B under way", "reads", 20, 64),
];

fn main() {
    let repeats = std::env::args().find_map(|argument| argument.parse().ok());
    if let Err(error) = crosshandle_link::ucx() {
        eprintln!("SKIPPED the figures: {error}");
        return;
    }
    let hosts = Hosts::new();
    for _ in 0..repeats.unwrap_or(3) {
        let bare = bare(&hosts);
        let ucx = ours(&hosts, "ucx");
        let tls = ours(&hosts, "tls");
        for (index, (name, ..)) in FIGURES.iter().enumerate() {
            println!(
                "{name:40} | UCX alone {:10.1} µs | link {:10.1} µs, {:.2} × | over TLS {:10.1} µs",
                bare[index],
                ucx[index],
                ucx[index] / bare[index],
                tls[index]
            );
        }
    }
}

fn microseconds(nanoseconds: &str) -> f64 {
    nanoseconds.parse::<f64>().unwrap() / 1000.0
}

fn bare(hosts: &Hosts) -> Vec<f64> {
    let (mut a, mut b) = (hosts.start("a"), hosts.start("b"));
    let of_a = a.ask(&format!("bare start {}", hosts.interface("a")));
    let of_b = b.ask(&format!("bare start {}", hosts.interface("b")));
    a.ask(&format!("bare connect {of_b}"));
    b.ask(&format!("bare connect {of_a}"));
    let figure = |(_, what, count, len): &(&str, &str, usize, usize)| {
        let other = if *what == "ping" { "pong" } else { "serve" };
        a.begin(&format!("bare {other} {count} {len}"));
        let time = b.ask(&format!("bare {what} {count} {len}"));
        a.end().unwrap();
        microseconds(&time)
    };
    FIGURES.iter().map(figure).collect()
}

fn ours(hosts: &Hosts, data: &str) -> Vec<f64> {
    let (mut a, mut b) = (hosts.start("a"), hosts.start("b"));
    let address = a.ask(&format!(
        "listen {}:0 {TOKEN} {data} {} 10000",
        hosts.address("a"),
        hosts.interface("a")
    ));
    b.ask(&format!(
        "connect {address} {TOKEN} {data} {} 10000",
        hosts.interface("b")
    ));
    a.ask("accept 10000");
    let open = |owner: &mut Peer, user: &mut Peer| {
        let memory = owner.ask(&format!("allocate {}", 64 * MIB));
        let event = owner.ask("create_event");
        user.ask(&format!(
            "open_memory {}",
            memory.split(' ').next().unwrap()
        ));
        user.ask(&format!("open_event {event}"));
        // Touch the pages first, so that page faults are not measured.
        owner.ask("fill 0 1");
    };
    open(&mut a, &mut b);
    open(&mut b, &mut a);
    let figure = |(_, what, count, len): &(&str, &str, usize, usize)| {
        if *what == "ping" {
            a.begin(&format!("figure pong {count} {len}"));
        }
        let time = b.ask(&format!("figure {what} {count} {len}"));
        if *what == "ping" {
            a.end().unwrap();
        }
        microseconds(&time)
    };
    FIGURES.iter().map(figure).collect()
}
