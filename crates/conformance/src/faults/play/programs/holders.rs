//! Stories of one holder: programs that load, publish and revoke, and the holder itself.

use super::victim::{Plan, Seen, must_succeed};
use super::world::{LIMIT, REQUEST_INTERVAL, World};
use super::{Stage, Story};
use crate::failure::Failure;
use std::thread::sleep;
use std::time::Instant;

/// Timeout of `crosshandle revoke`, which takes long while many processes start and end.
const REVOKE_WAIT: &str = "30s";

impl Stage<'_> {
    pub(super) fn publish(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        let (world, is_new) = (&self.user, story == Story::Load);
        let before = world.descriptors()?;
        let (one, two) = (world.path("one"), world.path("two"));
        if !is_new && !world.run(&["load", &one, "--name", "m"])?.is_ok {
            return Err(Failure::new("the first version was not published"));
        }
        let mut words = vec!["load", &two, "--name", "m"];
        words.extend((!is_new).then_some("--replace"));
        let mut victim = world.victim(&words, plan)?;
        let is_done = victim.finish(plan)?;
        let seen = victim.seen()?;
        world.check_model("m", is_done || !is_new)?;
        if world.has("m")? {
            world.run(&["rm", "m"])?;
        }
        world.check_descriptors(before)?;
        Ok(seen)
    }

    pub(super) fn revoke(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let world = &self.user;
        let before = world.descriptors()?;
        let shared = world.run(&["share", &world.path("one"), "--name", "r"])?;
        if !shared.is_ok {
            return Err(Failure::new(shared.complaints));
        }
        let mut victim = world.victim(&["revoke", "r", "--wait", REVOKE_WAIT], plan)?;
        victim.finish(plan)?;
        let seen = victim.seen()?;
        // A dead writer must not block other writers.
        let next = world.run(&["revoke", "r", "--wait", REVOKE_WAIT])?;
        if !next.is_ok {
            return Err(Failure::new(format!(
                "`revoke` after it: {}",
                next.complaints
            )));
        }
        world.run(&["rm", "r"])?;
        world.check_descriptors(before)?;
        Ok(seen)
    }

    /// Plays the holder's own start and end. Fencing is a separate story, because it examines every
    /// process of the machine and so takes most of the holder's steps.
    pub(super) fn hold(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        let world = World::new(self.programs, false)?;
        let mut victim = world.victim(&["hold"], plan)?;
        let since = Instant::now();
        // The victim may end before it holds anything, but it must either hold or end.
        while !world.status().is_ok_and(|status| status.is_safe) {
            if victim.child.try_wait()?.is_some() && world.status().is_err() {
                victim.finish(plan)?;
                return victim.seen();
            }
            if since.elapsed() > LIMIT {
                return Err(Failure::new("it neither holds safely nor ends"));
            }
            sleep(REQUEST_INTERVAL);
        }
        let must = |words: &[&str]| {
            let ended = world.run(words)?;
            match ended.is_ok || !must_succeed(plan) {
                true => Ok(ended),
                false => {
                    let why = format!("`{}`: {}", words.join(" "), ended.complaints);
                    Err(Failure::new(why))
                }
            }
        };
        let loaded = must(&["load", &world.path("one"), "--name", "m"])?;
        let is_promised = loaded.is_ok && !loaded.complaints.contains("successor");
        if story == Story::HoldRevoke {
            must(&["share", &world.path("two"), "--name", "r"])?;
            must(&["revoke", "r", "--wait", REVOKE_WAIT])?;
            must(&["rm", "r"])?;
        } else {
            world.check_model("m", is_promised)?;
        }
        if plan.is_some() && world.is_refused_by_successor()? {
            // The successor had no memory for the model. The remedy in the message must work.
            must(&["rm", "m"])?;
            must(&["load", &world.path("one"), "--name", "m"])?;
        }
        world.await_safe()?;
        world.check_model("m", is_promised)?;
        // Stops the remaining holder, which may be the former successor.
        let stopped = world.run(&["hold", "--stop"])?;
        if !stopped.is_ok {
            return Err(Failure::new(format!(
                "`hold --stop`: {}",
                stopped.complaints
            )));
        }
        victim.seen()
    }
}
