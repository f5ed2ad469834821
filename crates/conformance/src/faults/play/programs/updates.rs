//! Stories of a model that is updated in place while another process reads the model.

use super::victim::{Plan, Seen, Victim};
use super::world::{World, end};
use super::{Stage, Story};
use crate::failure::Failure;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Byte with which the first writer fills the model. `LAST` is the byte of the last writer.
const FIRST: &str = "2";
const LAST: &str = "3";

impl World<'_> {
    /// Runs a writer, which must succeed.
    fn write(&self, words: &[&str]) -> Result<(), Failure> {
        let ended = self.run_prepared(self.peer(words), words)?;
        match ended.is_ok {
            true => Ok(()),
            false => Err(Failure::new(format!("a writer: {}", ended.complaints))),
        }
    }
}

impl Stage<'_> {
    /// Lets two writers update a model while a reader reads it. The victim is the first writer or
    /// the reader.
    pub(super) fn update(&self, story: Story, plan: Option<Plan>) -> Result<Seen, Failure> {
        let world = &self.user;
        let before = world.descriptors()?;
        if !world
            .run(&["load", &world.path("one"), "--name", "m"])?
            .is_ok
        {
            return Err(Failure::new("the model was not published"));
        }
        let claims = (story == Story::Claim).then_some("claim");
        let writer =
            |byte| -> Vec<&str> { ["write", "m", byte].into_iter().chain(claims).collect() };
        let follow = ["follow", "m", LAST];
        let seen = if story == Story::Follow {
            let mut reader = Victim::start(world.peer(&follow), plan)?;
            reader.line();
            // A fault in a reader must not disturb a writer.
            world.write(&writer(FIRST))?;
            world.write(&writer(LAST))?;
            reader.finish(plan)?;
            reader.seen()?
        } else {
            let mut reader = world.peer(&follow);
            let mut reader = reader
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(output) = reader.stdout.take() {
                BufReader::new(output).read_line(&mut String::new())?;
            }
            let mut victim = Victim::start(world.peer(&writer(FIRST)), plan)?;
            victim.finish(plan)?;
            let seen = victim.seen()?;
            // A dead writer must not keep other writers out. The next writer repairs a torn model.
            world.write(&writer(LAST))?;
            let ended = end(reader)?;
            if !ended.is_ok {
                return Err(Failure::new(format!("the reader: {}", ended.complaints)));
            }
            seen
        };
        world.check_model("m", true)?;
        world.run(&["rm", "m"])?;
        world.check_descriptors(before)?;
        Ok(seen)
    }
}
