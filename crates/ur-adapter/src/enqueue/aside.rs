//! Copies from and to the host's own memory, beside their queue.
//!
//! A driver does such a copy on the thread that submits it, which then waits for everything that
//! comes before. `urEnqueue…` must not: what it waits for may be that very thread. So the queue
//! calls the host when it is the copy's turn, and a thread of the queue makes the copy in another
//! queue, where nothing else is under way.

use crate::failure::Result;
use crate::object::Shared;
use crate::queue::Queue;
use crosshandle::{Command, Context, EventOptions, QueueOrder};
use std::sync::{Arc, Mutex, PoisonError};

/// The queues of a context for such copies, by their device's place in it.
#[derive(Default)]
pub(crate) struct Asides(Mutex<Vec<Option<Arc<crosshandle::Queue>>>>);

impl Asides {
    /// The one for a device, created now if there is none.
    fn get(&self, place: usize, context: &Context) -> Result<Arc<crosshandle::Queue>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() <= place {
            queues.resize_with(place + 1, || None);
        }
        if let Some(queue) = &queues[place] {
            return Ok(Arc::clone(queue));
        }
        // No copy waits for another one.
        let queue = Arc::new(context.create_queue_with(QueueOrder::OutOfOrder)?);
        Ok(Arc::clone(queues[place].insert(queue)))
    }
}

/// A command that makes a copy when it is its turn.
pub(super) fn command(queue: &Shared<Queue>, copy: Command) -> Result<Command> {
    let device = queue.device();
    let context = queue.context().on(device)?.clone();
    let mut devices = queue.context().devices();
    let place = devices.position(|other| Arc::ptr_eq(other, device));
    let asides = &queue.context().state().asides;
    let aside = asides.get(place.unwrap_or(0), &context)?;
    Ok(Command::call(move || copy_now(&context, &aside, copy)))
}

fn copy_now(
    context: &Context,
    aside: &crosshandle::Queue,
    copy: Command,
) -> crosshandle::Result<()> {
    let done = context.create_event_with(EventOptions::new().shareable(false))?;
    aside.submit(copy.signal(&done))?;
    done.wait()
}
