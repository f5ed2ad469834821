//! Notice of the deaths of other members' processes.

use super::owners::OwnerIdentity;
use super::{ChannelControl, ChannelRole, Departure};
use crosshandle_events::channel::Peers;
use crosshandle_os::threads::exchange::{self, Next, Registration, Source, Watch};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

pub(super) struct PeerWatch {
    identity: OwnerIdentity,
    _watch: Watch,
}

/// The process of a member. Only the exchange thread keeps it.
struct WatchedPeer {
    pidfd: OwnedFd,
    control: Weak<ChannelControl>,
}

impl Source for WatchedPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The end of the process arrives as a message.
    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        if let Some(control) = self.control.upgrade() {
            control.words.remove_dead(&Living(&control));
            // Another survivor may have ended the dead process's memberships before.
            control.report_departure();
        }
        Next::Forget
    }
}

/// The view of a process that looks which members are alive.
struct Living<'a>(&'a ChannelControl);

impl Peers for Living<'_> {
    fn is_dead(&self, owner: u16) -> bool {
        self.0.is_dead(owner)
    }
}

impl ChannelControl {
    /// Sets the function that is called when another process has died, on the exchange thread. Only
    /// the first call has an effect.
    pub fn on_departure(&self, departed: Box<Departure>) {
        let _ = self.departed.set(departed);
    }

    /// Watches the processes of all other members, so that their deaths are noticed at once. Cheap
    /// if they are watched already. Returns `false` if some were not, because their processes may
    /// have ended before this call.
    pub fn watch_peers(self: &Arc<Self>) -> bool {
        let mut were_watched = true;
        let mut watches = self.watches.lock();
        for role in [ChannelRole::Producer, ChannelRole::Consumer] {
            for key in self.living(role) {
                if key.owner == self.owner {
                    continue;
                }
                let identity = self.process_of(key.owner);
                let is_watched = watches
                    .get(&key.owner)
                    .is_some_and(|watch| Some(watch.identity) == identity);
                if is_watched {
                    continue;
                }
                were_watched = false;
                let Some(identity) = identity else { continue };
                let Ok(pidfd) = identity.pidfd(self.namespace) else {
                    continue;
                };
                let peer = WatchedPeer {
                    pidfd,
                    control: Arc::downgrade(self),
                };
                match exchange::watch(Arc::new(peer)) {
                    Ok(watch) => {
                        let watch = PeerWatch {
                            identity,
                            _watch: watch,
                        };
                        watches.insert(key.owner, watch);
                    }
                    Err(error) => tracing::debug!(%error, "a channel's member cannot be watched"),
                }
            }
        }
        were_watched
    }

    /// Ends the memberships of dead processes, and reports them.
    pub fn remove_dead(&self) {
        if self.words.remove_dead(&Living(self)) {
            self.report_departure();
        }
    }

    fn report_departure(&self) {
        if let Some(departed) = self.departed.get() {
            departed();
        }
    }
}
