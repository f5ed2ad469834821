//! The order in which requests are served when more of them are ready than can be served at once.

use std::collections::{BTreeMap, VecDeque};

/// The user and the process that share the turns of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Party {
    /// `None` for descriptors of this process, which take turns as one more user.
    user: Option<u32>,
    process: u64,
}

impl Party {
    /// Returns the party of a peer's connection. `pid` is the peer's process id in this process's
    /// PID namespace, or 0 if it has none there.
    pub fn peer(uid: u32, pid: u32) -> Self {
        Self {
            user: Some(uid),
            process: pid.into(),
        }
    }

    /// Returns the party of a descriptor of this process. Each `number` takes its own turns.
    pub fn own(number: u64) -> Self {
        Self {
            user: None,
            process: number,
        }
    }
}

/// A queue of ready connections in which users take turns, and so do the processes of a user and
/// the connections of a process.
///
/// More processes give a user no more turns, and more connections give a process no more. A turn
/// takes logarithmic time, however many connections are ready. Nothing is remembered about a
/// connection that is not in the queue.
#[derive(Default)]
pub struct RoundRobin {
    /// The users with a connection in the queue. The front has the next turn.
    users: VecDeque<Option<u32>>,
    /// The processes of each of these users, in the same order.
    processes: BTreeMap<Option<u32>, VecDeque<u64>>,
    /// The connections of each of these processes, in the same order.
    connections: BTreeMap<Party, VecDeque<u64>>,
}

impl RoundRobin {
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Adds a connection behind the others of its process. It must not be in the queue already.
    pub fn push(&mut self, party: Party, connection: u64) {
        let connections = self.connections.entry(party).or_default();
        connections.push_back(connection);
        if connections.len() > 1 {
            return;
        }
        let processes = self.processes.entry(party.user).or_default();
        processes.push_back(party.process);
        if processes.len() == 1 {
            self.users.push_back(party.user);
        }
    }

    /// Removes the connection whose turn it is. Then it is the turn of another user, if there is
    /// one.
    pub fn pop(&mut self) -> Option<u64> {
        let user = self.users.pop_front()?;
        let processes = self.processes.get_mut(&user)?;
        let process = processes.pop_front()?;
        let party = Party { user, process };
        let connections = self.connections.get_mut(&party)?;
        let connection = connections.pop_front();
        match connections.is_empty() {
            true => drop(self.connections.remove(&party)),
            false => processes.push_back(process),
        }
        match processes.is_empty() {
            true => drop(self.processes.remove(&user)),
            false => self.users.push_back(user),
        }
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(queue: &mut RoundRobin, count: usize) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).take(count).collect()
    }

    #[test]
    fn users_take_turns_and_so_do_their_processes_and_the_connections_of_these() {
        let mut queue = RoundRobin::default();
        (0..4).for_each(|connection| queue.push(Party::peer(1, 10), connection));
        (10..12).for_each(|connection| queue.push(Party::peer(1, 11), connection));
        (20..23).for_each(|connection| queue.push(Party::peer(2, 10), connection));
        let order = [0, 20, 10, 21, 1, 22, 11, 2, 3];
        assert_eq!(take(&mut queue, 100), order);
        assert!(queue.is_empty() && queue.processes.is_empty() && queue.connections.is_empty());
    }

    #[test]
    fn connections_that_are_always_ready_delay_others_by_a_turn_each() {
        const HOSTILE: u64 = 20;
        // Neither a newcomer of the same process, nor one of another process or user, waits for
        // longer than the connections with which it takes turns.
        for (newcomer, most) in [
            (Party::peer(1, 10), HOSTILE as usize + 1),
            (Party::peer(1, 11), 2),
            (Party::peer(2, 10), 2),
        ] {
            let mut queue = RoundRobin::default();
            (0..HOSTILE).for_each(|connection| queue.push(Party::peer(1, 10), connection));
            for _ in 0..7 {
                let connection = queue.pop().expect("one is ready");
                queue.push(Party::peer(1, 10), connection);
            }
            queue.push(newcomer, HOSTILE);
            let mut turns = 1;
            while let Some(connection) = queue.pop()
                && connection != HOSTILE
            {
                queue.push(Party::peer(1, 10), connection);
                turns += 1;
            }
            assert!(turns <= most, "{newcomer:?} had to wait for {turns} turns");
        }
    }
}
