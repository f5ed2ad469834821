//! The order in which requests are served when more of them are ready than can be served at once.

use std::collections::BTreeMap;

/// Records when each process and each user was last served, counted in turns.
///
/// Users take turns, and so do the processes of a user. Whichever was served longest ago comes
/// first. More connections give a process no more turns. The connections of one process do not take
/// turns: the one with the lowest number always comes first.
pub struct RoundRobin<U, P> {
    /// Maximum number of processes to remember. Half of them are forgotten when there are more.
    remembered: usize,
    turns: u64,
    of_process: BTreeMap<P, u64>,
    of_user: BTreeMap<U, u64>,
}

impl<U: Copy + Ord, P: Copy + Ord> RoundRobin<U, P> {
    pub fn new(remembered: usize) -> Self {
        Self {
            remembered,
            turns: 0,
            of_process: BTreeMap::new(),
            of_user: BTreeMap::new(),
        }
    }

    /// Notes that a process of a user is being served.
    pub fn note(&mut self, user: U, process: P) {
        self.turns += 1;
        self.of_process.insert(process, self.turns);
        self.of_user.insert(user, self.turns);
        if self.of_process.len() > self.remembered {
            // Entries of processes that were served long ago are dropped. They then come first,
            // like new processes.
            let recent = self.turns.saturating_sub(self.remembered as u64 / 2);
            self.of_process.retain(|_, turn| *turn > recent);
            self.of_user.retain(|_, turn| *turn > recent);
        }
    }

    /// Returns the numbers of the first `most` requests to serve. Each request has the user, the
    /// process and a number. Requests of one process come in ascending order of their numbers.
    pub fn order(&self, requests: impl Iterator<Item = (U, P, u64)>, most: usize) -> Vec<u64> {
        let mut of_process: BTreeMap<P, u32> = BTreeMap::new();
        // The first request of every process comes before the second request of any process.
        let mut all: Vec<_> = requests
            .map(|(user, process, number)| {
                let count = of_process.entry(process).or_default();
                *count += 1;
                let last = self.of_process.get(&process).copied().unwrap_or(0);
                (*count, last, number, user)
            })
            .collect();
        all.sort_unstable();
        let mut of_user: BTreeMap<U, u32> = BTreeMap::new();
        let mut ranked: Vec<_> = all
            .into_iter()
            .map(|(_, _, number, user)| {
                let rank = of_user.entry(user).or_default();
                *rank += 1;
                let last = self.of_user.get(&user).copied().unwrap_or(0);
                (*rank, last, number)
            })
            .collect();
        ranked.sort_unstable();
        ranked.truncate(most);
        ranked.into_iter().map(|(_, _, number)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_processes_of_long_ago_are_forgotten() {
        let mut turns = RoundRobin::new(8);
        for process in 0..100_u32 {
            turns.note(process, process);
            assert!(turns.of_process.len() <= 8 && turns.of_user.len() <= 8);
        }
        // Only the latest processes come after a new one.
        let ready = [(99, 99, 1), (100, 100, 2), (3, 3, 3)];
        assert_eq!(turns.order(ready.into_iter(), 3), [2, 3, 1]);
    }
}
