//! Command buffers: commands that are recorded once and then enqueued together any number of times.
//!
//! - `appended`: the arguments that all recording calls share.
//! - `parts`: the division of a command buffer at commands with events, and the runs of the parts.
//! - `append`, `append_rect`, `launch`: the recording entry points. `launch` also updates launches.
//! - `native`: commands that the program records by calling the driver.
//! - `events`: updates of the events of recorded commands.

mod append;
mod append_rect;
mod appended;
mod events;
mod launch;
mod native;
mod parts;

use crate::abi::boundary::{In, MaybeOut, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Object, Ref, Shared, release, retain};
use crate::abi::query::Answer;
use crate::context::Context;
use crate::discovery::Device;
use crate::enqueue::{Submission, WaitList};
use crate::memory::replicas::MemoryUse;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use appended::Appended;
use crosshandle::{Command, native::NativeRecording};
use events::CommandEvents;
use launch::RecordedLaunch;
use parts::{PartEvents, PartNode, Parts, Recordings};
use std::mem::{self, offset_of};
use std::sync::{Arc, Weak};
use unified_runtime_sys::{
    ur_command_buffer_exp_dditable_t, ur_command_t, ur_event_handle_t,
    ur_exp_command_buffer_command_handle_t, ur_exp_command_buffer_command_handle_t_,
    ur_exp_command_buffer_desc_t, ur_exp_command_buffer_handle_t, ur_exp_command_buffer_handle_t_,
    ur_exp_command_buffer_info_t, ur_result_t, ur_structure_type_t,
};

/// A UR command buffer handle.
pub(crate) struct CommandBuffer {
    context: Ref<Context>,
    device: Ref<Device>,
    is_updatable: bool,
    is_in_order: bool,
    is_profiling: bool,
    /// The driver's object to which the program's functions append commands.
    native: Lock<Option<NativeRecording>>,
    /// Held during an update, so that concurrent updates do not overwrite each other. This lock is
    /// acquired before all other locks.
    updating: Lock<()>,
    /// The recorded commands. This lock is not held during a driver call, because the driver may
    /// wait for a device.
    state: Lock<State>,
}

/// A UR handle of a recorded command. It is valid as long as its command buffer exists.
pub(crate) struct RecordedCommand {
    buffer: Weak<Shared<CommandBuffer>>,
    node: PartNode,
    events: CommandEvents,
    /// The current launch, if the command is a kernel launch. An update starts from this launch and
    /// replaces it. No other lock is acquired while this lock is held.
    launch: Lock<Option<RecordedLaunch>>,
}

struct State {
    phase: Phase,
    /// The node of each sync point's command.
    points: Vec<PartNode>,
    commands: Vec<Ref<RecordedCommand>>,
}

enum Phase {
    Recording(Recordings),
    /// A thread has taken the recording and is instantiating it.
    Finalizing,
    Final(Arc<Parts>),
}

impl Object for CommandBuffer {
    type Opaque = ur_exp_command_buffer_handle_t_;
}

impl Object for RecordedCommand {
    type Opaque = ur_exp_command_buffer_command_handle_t_;
}

impl Destination for CommandBuffer {
    fn context(&self) -> &Ref<Context> {
        &self.context
    }

    fn device(&self) -> &Ref<Device> {
        &self.device
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn note(&self, used: MemoryUse) -> Result<()> {
        match &mut self.state.lock().phase {
            Phase::Recording(recording) => recording.note(used),
            // The caller is appending a command. The call will be refused, so the use is
            // irrelevant.
            Phase::Finalizing => {}
            // An update makes the command buffer use this object. If the update then fails, later
            // runs prepare an object that they do not use. This is harmless.
            Phase::Final(run) => run.note(used),
        }
        Ok(())
    }
}

fn not_finalized() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
        "this command buffer is not finalized",
    )
}

impl RecordedCommand {
    /// Returns the command buffer that contains this command.
    ///
    /// # Errors
    /// Returns `INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP` if the command buffer no longer exists.
    fn buffer(&self) -> Result<Ref<CommandBuffer>> {
        self.buffer.upgrade().ok_or_else(|| {
            Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP)
        })
    }
}

impl Shared<CommandBuffer> {
    /// Records a command, with the events that it waits for and signals in each run.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the command buffer is finalized, or if the caller requests a
    /// command handle but updates are disabled. Returns `INVALID_COMMAND_BUFFER_SYNC_POINT_EXP` for
    /// an unknown sync point.
    fn append(
        &self,
        command: Command,
        launch: Option<RecordedLaunch>,
        appended: Appended<'_>,
    ) -> Result<()> {
        self.check_wanted(&appended)?;
        let context = self.context.on(&self.device)?;
        let wait_count = appended.waits.len();
        let signal = match &appended.event {
            Some(_) => Some(self.create_event()?),
            None => None,
        };
        let state = &mut *self.state.lock();
        let Phase::Recording(recording) = &mut state.phase else {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command buffer is finalized and accepts no more commands",
            ));
        };
        let unknown =
            || Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_SYNC_POINT_EXP);
        let point_of = |point: &u32| state.points.get(*point as usize).copied();
        let after: Option<Vec<PartNode>> = appended.after.iter().map(point_of).collect();
        let mut after = after.ok_or_else(unknown)?;
        if self.is_in_order {
            after.extend(state.points.last());
        }
        let events = PartEvents {
            waits: appended.waits,
            signal: signal.clone(),
        };
        let (node, of_part) = recording.add(context, command, &after, events)?;
        let sync_point = state.points.len() as u32;
        state.points.push(node);
        if let Some(wanted) = &appended.command {
            let command = Shared::new(RecordedCommand {
                buffer: Arc::downgrade(&self.to_ref()),
                node,
                events: CommandEvents {
                    of_part,
                    wait_count,
                    is_signalling: signal.is_some(),
                },
                launch: Lock::new(launch),
            });
            wanted.put(command.handle())?;
            state.commands.push(command);
        }
        if let (Some(wanted), Some(signal)) = (&appended.event, signal) {
            wanted.put(self.hand_out(signal))?;
        }
        match &appended.sync_point {
            Some(place) => place.put(sync_point),
            None => Ok(()),
        }
    }
}

impl CommandBuffer {
    /// Returns the bytes of the command buffer's description. Padding bytes are zero.
    fn descriptor(&self) -> [u8; size_of::<ur_exp_command_buffer_desc_t>()] {
        let mut bytes = [0; size_of::<ur_exp_command_buffer_desc_t>()];
        let kind = ur_structure_type_t::UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC.0;
        let at = offset_of!(ur_exp_command_buffer_desc_t, stype);
        bytes[at..at + size_of_val(&kind)].copy_from_slice(&kind.to_ne_bytes());
        bytes[offset_of!(ur_exp_command_buffer_desc_t, isUpdatable)] = self.is_updatable.into();
        bytes[offset_of!(ur_exp_command_buffer_desc_t, isInOrder)] = self.is_in_order.into();
        bytes[offset_of!(ur_exp_command_buffer_desc_t, enableProfiling)] = self.is_profiling.into();
        bytes
    }

    /// Checks that the caller requests a command handle only if the command buffer allows updates.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if updates are not allowed.
    fn check_wanted(&self, appended: &Appended<'_>) -> Result<()> {
        match appended.command {
            Some(_) if !self.is_updatable => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command buffer was not created for updates",
            )),
            _ => Ok(()),
        }
    }

    /// Looks up a command by its handle. The handle is not dereferenced.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_HANDLE` if the handle is null. Returns
    /// `INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP` if the command does not belong to this command
    /// buffer.
    fn command(
        &self,
        handle: ur_exp_command_buffer_command_handle_t,
    ) -> Result<Ref<RecordedCommand>> {
        if handle.is_null() {
            return Err(Failure::NULL_HANDLE);
        }
        let state = self.state.lock();
        let mut known = state.commands.iter();
        let found = known.find(|command| command.handle() == handle);
        found.cloned().ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_COMMAND_BUFFER_COMMAND_HANDLE_EXP,
                "this command does not belong to this command buffer",
            )
        })
    }

    /// Returns the executable parts of the finalized command buffer.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the command buffer is not finalized.
    fn run(&self) -> Result<Arc<Parts>> {
        match &self.state.lock().phase {
            Phase::Final(run) => Ok(Arc::clone(run)),
            Phase::Recording(_) | Phase::Finalizing => Err(not_finalized()),
        }
    }

    /// Returns the executable parts of the finalized command buffer, so that the caller can update
    /// them.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the command buffer is not finalized, or was not created for
    /// updates.
    fn updatable(&self) -> Result<Arc<Parts>> {
        let run = self.run()?;
        if !self.is_updatable {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command buffer was not created for updates",
            ));
        }
        Ok(run)
    }

    /// Finalizes the command buffer, which makes it executable.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the command buffer is already finalized, or if another thread
    /// is finalizing it. Returns an error from `crosshandle` if the driver reaches a limit. After
    /// such an error, commands can still be appended.
    fn finalize(&self) -> Result<()> {
        let recording = {
            let state = &mut *self.state.lock();
            match mem::replace(&mut state.phase, Phase::Finalizing) {
                Phase::Recording(recording) => recording,
                phase => {
                    state.phase = phase;
                    return Err(Failure::new(
                        ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                        "this command buffer is already finalized",
                    ));
                }
            }
        };
        let run = recording.instantiate();
        let (phase, result) = match run {
            Ok(run) => (Phase::Final(Arc::new(run)), Ok(())),
            Err(failure) => (Phase::Recording(recording), Err(failure)),
        };
        self.state.lock().phase = phase;
        result
    }
}

entry_points! {
    fn create(
        context: Handle<Context>,
        device: Handle<Device>,
        desc: In<ur_exp_command_buffer_desc_t>,
        created: Out<ur_exp_command_buffer_handle_t>,
    ) {
        let inner = context.on(device)?;
        let state = State {
            phase: Phase::Recording(Recordings::new(inner)),
            points: Vec::new(),
            commands: Vec::new(),
        };
        created.put(Shared::hand_out(Shared::new(CommandBuffer {
            context: context.to_ref(),
            device: device.to_ref(),
            is_updatable: desc.isUpdatable != 0,
            is_in_order: desc.isInOrder != 0,
            is_profiling: desc.enableProfiling != 0,
            native: Lock::default(),
            updating: Lock::default(),
            state: Lock::new(state),
        })))
    }

    fn finalize(buffer: Handle<CommandBuffer>) {
        buffer.finalize()
    }

    fn get_info(
        buffer: Handle<CommandBuffer>,
        name: ur_exp_command_buffer_info_t,
        query(size, value, size_ret): Answer,
    ) {
        match name {
            ur_exp_command_buffer_info_t::UR_EXP_COMMAND_BUFFER_INFO_REFERENCE_COUNT => {
                query.value(buffer.references())
            }
            ur_exp_command_buffer_info_t::UR_EXP_COMMAND_BUFFER_INFO_DESCRIPTOR => {
                query.value(buffer.descriptor())
            }
            _ => Err(Failure::ENUMERATION),
        }
    }

    /// Enqueues a run of the command buffer. Runs of one command buffer execute one after another,
    /// even in different queues. If a queue is being captured, only the capture orders its runs.
    pub(crate) fn enqueue(
        queue: Handle<Queue>,
        buffer: Handle<CommandBuffer>,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        if !std::ptr::eq(&**queue.device(), &*buffer.device) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE,
                "this queue is on another device than the command buffer",
            ));
        }
        if !Arc::ptr_eq(queue.context().state(), buffer.context.state()) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE,
                "this queue and the command buffer belong to different contexts",
            ));
        }
        let mut submission = Submission::new(queue, waits, event)?;
        if buffer.is_profiling {
            submission = submission.with_timestamps();
        }
        let kind = ur_command_t::UR_COMMAND_ENQUEUE_COMMAND_BUFFER_EXP;
        buffer.run()?.submit(submission, kind)
    }
}

/// The entry points for command buffers.
pub(crate) const TABLE: ur_command_buffer_exp_dditable_t = ur_command_buffer_exp_dditable_t {
    pfnCreateExp: Some(create),
    pfnRetainExp: Some(retain::<CommandBuffer>),
    pfnReleaseExp: Some(release::<CommandBuffer>),
    pfnFinalizeExp: Some(finalize),
    pfnAppendKernelLaunchExp: Some(launch::append),
    pfnAppendKernelLaunchWithArgsExp: Some(launch::append_with_args),
    pfnAppendUSMMemcpyExp: Some(append::usm_copy),
    pfnAppendUSMFillExp: Some(append::usm_fill),
    pfnAppendMemBufferCopyExp: Some(append::copy),
    pfnAppendMemBufferWriteExp: Some(append::write),
    pfnAppendMemBufferReadExp: Some(append::read),
    pfnAppendMemBufferCopyRectExp: Some(append_rect::copy),
    pfnAppendMemBufferWriteRectExp: Some(append_rect::write),
    pfnAppendMemBufferReadRectExp: Some(append_rect::read),
    pfnAppendMemBufferFillExp: Some(append::fill),
    pfnAppendUSMPrefetchExp: Some(append::usm_prefetch),
    pfnAppendUSMAdviseExp: Some(append::usm_advise),
    pfnAppendNativeCommandExp: Some(native::append),
    pfnUpdateKernelLaunchExp: Some(launch::update),
    pfnUpdateSignalEventExp: Some(events::update_signal),
    pfnUpdateWaitEventsExp: Some(events::update_waits),
    pfnGetInfoExp: Some(get_info),
    pfnGetNativeHandleExp: Some(native::get_native_handle),
};
