//! The order in which requests are served when more of them are ready than can be served at once.

use std::collections::BTreeMap;

/// Records when each process and each user was last served, counted in turns.
///
/// Users take turns, and so do the processes of a user, and the connections of a process. Whichever
/// was served longest ago comes first. The number and the age of connections do not matter, since a
/// process can make many connections and send many requests on each of them.
pub struct RoundRobin<U, P> {
    /// Maximum number of processes to remember. Half of them are forgotten when there are more.
    remembered: usize,
    turns: u64,
    /// The number after that of the request that was served last.
    next: u64,
    /// The last turn of each process, and the number after that of the request that it served.
    of_process: BTreeMap<P, (u64, u64)>,
    of_user: BTreeMap<U, u64>,
}

impl<U: Copy + Ord, P: Copy + Ord> RoundRobin<U, P> {
    pub fn new(remembered: usize) -> Self {
        Self {
            remembered,
            turns: 0,
            next: 0,
            of_process: BTreeMap::new(),
            of_user: BTreeMap::new(),
        }
    }

    /// Notes that a request with this number is being served for a process of a user.
    pub fn note(&mut self, user: U, process: P, number: u64) {
        self.turns += 1;
        self.next = number.wrapping_add(1);
        self.of_process.insert(process, (self.turns, self.next));
        self.of_user.insert(user, self.turns);
        if self.of_process.len() > self.remembered {
            // Entries of processes that were served long ago are dropped. They then come first,
            // like new processes.
            let recent = self.turns.saturating_sub(self.remembered as u64 / 2);
            self.of_process.retain(|_, (turn, _)| *turn > recent);
            self.of_user.retain(|_, turn| *turn > recent);
        }
    }

    /// Returns the numbers of the first `most` requests to serve. Each request has the user, the
    /// process and the number of its connection. The requests of one process come in ascending
    /// order of their numbers, beginning after the one that was served last.
    pub fn order(&self, requests: impl Iterator<Item = (U, P, u64)>, most: usize) -> Vec<u64> {
        let mut all: Vec<_> = requests
            .map(|(user, process, number)| {
                let (turn, next) = self.of_process.get(&process).copied().unwrap_or((0, 0));
                (process, number.wrapping_sub(next), turn, user, number)
            })
            .collect();
        all.sort_unstable();
        // The first request of every process comes before the second request of any process.
        let mut of_process: BTreeMap<P, u32> = BTreeMap::new();
        let mut all: Vec<_> = all
            .into_iter()
            .map(|(process, _, turn, user, number)| {
                let count = of_process.entry(process).or_default();
                *count += 1;
                // Among processes that are not remembered, the numbers take turns.
                (*count, turn, number.wrapping_sub(self.next), user, number)
            })
            .collect();
        all.sort_unstable();
        let mut of_user: BTreeMap<U, u32> = BTreeMap::new();
        let mut ranked: Vec<_> = all
            .into_iter()
            .map(|(_, _, distance, user, number)| {
                let rank = of_user.entry(user).or_default();
                *rank += 1;
                let last = self.of_user.get(&user).copied().unwrap_or(0);
                (*rank, last, distance, number)
            })
            .collect();
        ranked.sort_unstable();
        ranked.truncate(most);
        ranked.into_iter().map(|(_, _, _, number)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_processes_of_long_ago_are_forgotten() {
        let mut turns = RoundRobin::new(8);
        for process in 0..100_u32 {
            turns.note(process, process, u64::from(process));
            assert!(turns.of_process.len() <= 8 && turns.of_user.len() <= 8);
        }
        // Only the latest processes come after a new one.
        let ready = [(99, 99, 1), (100, 100, 2), (3, 3, 3)];
        assert_eq!(turns.order(ready.into_iter(), 3), [2, 3, 1]);
    }

    /// Serves the first requests of all that are always ready, until each was served or there were
    /// `rounds` rounds. Returns whether each was.
    fn serves_all(requests: &[(u32, u32, u64)], rounds: usize) -> bool {
        let mut turns = RoundRobin::new(8);
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..rounds {
            for number in turns.order(requests.iter().copied(), 2) {
                let (user, process, _) = requests[number as usize];
                turns.note(user, process, number);
                served.insert(number);
            }
        }
        served.len() == requests.len()
    }

    #[test]
    fn every_connection_has_its_turn() {
        let of_one: Vec<_> = (0..9).map(|number| (1, 1, number)).collect();
        assert!(serves_all(&of_one, 5));
        // A process with many connections competes with a process that has one.
        let of_two: Vec<_> = (0..9)
            .map(|number| (1, u32::from(number == 4), number))
            .collect();
        assert!(serves_all(&of_two, 8));
        // There are more processes than are remembered.
        let of_many: Vec<_> = (0..40).map(|number| (1, number as u32, number)).collect();
        assert!(serves_all(&of_many, 40));
    }
}
