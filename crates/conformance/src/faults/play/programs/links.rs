//! Stories of a link: the owner's side, and a program that pulls a model over it.

use super::Stage;
use super::victim::{Plan, Seen, must_succeed};
use crate::failure::Failure;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Time after which a link closes if its other side is silent.
const KEEP_ALIVE: &str = "2s";

/// Returns the command that shares models over links.
fn listen_with(token: &str) -> [&str; 8] {
    let address = "127.0.0.1:0";
    let [keep, token_file] = ["--keep-alive", "--token"];
    [
        "link", "listen", address, "--names", keep, KEEP_ALIVE, token_file, token,
    ]
}

impl Stage<'_> {
    pub(super) fn listen(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let before = self.owner.descriptors()?;
        let token = self.owner.path("token");
        let mut victim = self.owner.victim(&listen_with(&token), plan)?;
        let address = victim.line();
        match address.is_empty() {
            true => drop(victim.finish(plan)?),
            false => drop(self.pull_from(&address, &token, None, must_succeed(plan))?),
        }
        let seen = victim.seen()?;
        self.owner.check_model("m", true)?;
        self.owner.check_descriptors(before)?;
        Ok(seen)
    }

    pub(super) fn pull(&self, plan: Option<Plan>) -> Result<Seen, Failure> {
        let token = self.owner.path("token");
        let mut command = self.owner.command(&listen_with(&token));
        let mut server = command.stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        if let Some(output) = server.stdout.take() {
            BufReader::new(output).read_line(&mut address)?;
        }
        let pulled = self.pull_from(address.trim(), &token, Some(plan), false);
        let _ = server.kill();
        let _ = server.wait();
        pulled?.ok_or(Failure::new("nothing was seen"))
    }

    /// Pulls a model. The puller is the victim if there is a plan.
    fn pull_from(
        &self,
        address: &str,
        token: &str,
        plan: Option<Option<Plan>>,
        is_due: bool,
    ) -> Result<Option<Seen>, Failure> {
        let world = &self.user;
        let before = world.descriptors()?;
        let words = [
            "pull",
            "m",
            "--from",
            address,
            "--keep-alive",
            KEEP_ALIVE,
            "--token",
            token,
        ];
        let (is_done, seen) = match plan {
            Some(plan) => {
                let mut victim = world.victim(&words, plan)?;
                (victim.finish(plan)?, Some(victim.seen()?))
            }
            None => {
                let pulled = world.run(&words)?;
                if is_due && !pulled.is_ok {
                    return Err(Failure::new(format!("`pull`: {}", pulled.complaints)));
                }
                (pulled.is_ok, None)
            }
        };
        world.check_model("m", is_done)?;
        if world.has("m")? {
            world.run(&["rm", "m"])?;
        }
        world.check_descriptors(before)?;
        Ok(seen)
    }
}
