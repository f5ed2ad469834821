//! Limits the number of simultaneous handshakes. If there are too many, handshakes with unknown
//! hosts are ended first, so that unknown hosts cannot displace a host that has linked before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of simultaneous handshakes. A connection beyond this limit ends an older
/// handshake. Each handshake has a thread and uses about 40 KiB of memory.
const MAX_HANDSHAKES: usize = 32;

/// Maximum number of simultaneous handshakes from one IPv4 address or one IPv6 /64 network. A
/// connection beyond this limit ends the oldest handshake from there.
const MAX_HANDSHAKES_EACH: usize = 8;

/// Maximum number of remembered addresses from which hosts have linked. Unknown hosts cannot
/// displace these addresses.
const MAX_KNOWN: usize = 1024;

/// The connections whose handshake is in progress, oldest first.
pub(super) struct Doorway<T> {
    inside: VecDeque<Entrant<T>>,
    next: u64,
    /// Addresses from which hosts have authenticated themselves, oldest first. `is_known` contains
    /// the same addresses as a set.
    known: VecDeque<IpAddr>,
    is_known: HashSet<IpAddr>,
}

struct Entrant<T> {
    number: u64,
    from: IpAddr,
    connection: T,
}

impl<T> Default for Doorway<T> {
    fn default() -> Self {
        Self {
            inside: VecDeque::new(),
            next: 0,
            known: VecDeque::new(),
            is_known: HashSet::new(),
        }
    }
}

impl<T> Doorway<T> {
    /// Adds a connection that starts its handshake. Returns its number. If there are too many, also
    /// returns a connection that the caller must end.
    pub(super) fn enter(&mut self, from: IpAddr, connection: T) -> (u64, Option<T>) {
        let from = network(from);
        let number = self.next;
        self.next += 1;
        self.inside.push_back(Entrant {
            number,
            from,
            connection,
        });
        let ended = self.oldest_of(self.crowd(from));
        (number, ended)
    }

    /// Returns the address whose oldest connection must be ended, or `None` if there are not too
    /// many connections. `newest` is the address of the newest connection.
    fn crowd(&self, newest: IpAddr) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for entrant in &self.inside {
            *counts.entry(entrant.from).or_default() += 1;
        }
        if counts[&newest] > MAX_HANDSHAKES_EACH {
            return Some(newest);
        }
        if self.inside.len() <= MAX_HANDSHAKES {
            return None;
        }
        // End a connection from an unknown address before one from a known address. Then prefer the
        // address with the most connections, and then the address with the oldest connection.
        let rank = |from: &IpAddr| (!self.is_known.contains(from), counts[from]);
        let mut worst = self.inside.front()?.from;
        for entrant in &self.inside {
            if rank(&entrant.from) > rank(&worst) {
                worst = entrant.from;
            }
        }
        Some(worst)
    }

    fn oldest_of(&mut self, from: Option<IpAddr>) -> Option<T> {
        let place = self
            .inside
            .iter()
            .position(|entrant| Some(entrant.from) == from)?;
        self.inside.remove(place).map(|entrant| entrant.connection)
    }

    /// Removes a connection whose handshake is over.
    pub(super) fn leave(&mut self, number: u64) {
        self.inside.retain(|entrant| entrant.number != number);
    }

    /// Records that a host has authenticated itself from this address.
    pub(super) fn admit(&mut self, from: IpAddr) {
        let from = network(from);
        if self.is_known.insert(from) {
            self.known.push_back(from);
        }
        if self.known.len() > MAX_KNOWN
            && let Some(oldest) = self.known.pop_front()
        {
            self.is_known.remove(&oldest);
        }
    }
}

/// Returns the network that is treated as one host: an IPv4 address, or the first 64 bits of an
/// IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn a_flood_from_one_address_ends_its_own_handshakes() {
        let mut doorway = Doorway::default();
        let (honest, ended) = doorway.enter(address(1), "honest");
        assert_eq!(ended, None);
        for count in 1..=1000 {
            let (_, ended) = doorway.enter(address(2), "stranger");
            let expected = (count > MAX_HANDSHAKES_EACH).then_some("stranger");
            assert_eq!(ended, expected);
        }
        doorway.leave(honest);
        assert_eq!(doorway.inside.len(), MAX_HANDSHAKES_EACH);
    }

    #[test]
    fn hosts_that_have_linked_are_kept_while_there_are_strangers() {
        let mut doorway = Doorway::default();
        doorway.admit(address(1));
        doorway.enter(address(1), "known");
        for number in 0..10_000 {
            let (_, ended) = doorway.enter(address(100 + number), "stranger");
            assert_ne!(ended, Some("known"));
        }
        assert_eq!(doorway.inside.len(), MAX_HANDSHAKES);
        // A connection from an address with two connections is ended before one from an address
        // with one.
        let mut doorway = Doorway::default();
        doorway.enter(address(7), "alone");
        for number in 0..10_000 {
            let (_, ended) = doorway.enter(address(100 + number / 2 % 16), "crowd");
            assert_ne!(ended, Some("alone"));
        }
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_stranger() {
        let mut doorway = Doorway::default();
        for number in 0..1000u16 {
            let from = Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, number);
            doorway.enter(from.into(), "stranger");
        }
        assert_eq!(doorway.inside.len(), MAX_HANDSHAKES_EACH);
    }

    #[test]
    fn only_so_many_hosts_are_remembered() {
        let mut doorway = Doorway::<()>::default();
        for number in 0..2 * MAX_KNOWN as u32 {
            doorway.admit(address(number));
        }
        assert_eq!(doorway.known.len(), MAX_KNOWN);
        assert_eq!(doorway.is_known.len(), MAX_KNOWN);
    }
}
