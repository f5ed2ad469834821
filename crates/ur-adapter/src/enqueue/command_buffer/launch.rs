//! Entry points that record kernel launches, and update them.

use super::CommandBuffer;
use super::appended::{Appended, SyncPoints};
use crate::abi::boundary::{List, MaybeOut, entry_points, list};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, HandlesMut, Ref, Shared};
use crate::enqueue::WaitList;
use crate::enqueue::kernel::{Properties, Sizes, launch_command};
use crate::program::enter_with_kernels;
use crate::program::kernel::{Argument, Arguments, Kernel, read_arguments, read_sizes};
use crate::queue::destination::Destination;
use crate::tuning::MAX_KERNEL_ARGUMENTS;
use crosshandle::Command;
use std::ffi::c_void;
use std::ptr;
use unified_runtime_sys::{
    ur_event_handle_t, ur_exp_command_buffer_command_handle_t, ur_exp_command_buffer_handle_t,
    ur_exp_command_buffer_sync_point_t, ur_exp_command_buffer_update_kernel_launch_desc_t,
    ur_exp_kernel_arg_properties_t, ur_kernel_handle_t, ur_result_t,
};

/// The current kernel, arguments and sizes of a recorded launch. They are stored because an update
/// specifies only what changes.
#[derive(Clone)]
pub(super) struct RecordedLaunch {
    kernel: Ref<Kernel>,
    arguments: Arguments<'static>,
    /// The alternative kernels that an update may select, each with its latest arguments.
    alternatives: Vec<(Ref<Kernel>, Arguments<'static>)>,
    sizes: Sizes,
}

impl RecordedLaunch {
    /// Creates the command for the launch.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`launch_command`].
    unsafe fn command(&self, destination: &dyn Destination) -> Result<Command> {
        let properties = Properties::default();
        // SAFETY: the caller upholds this function's contract.
        unsafe {
            launch_command(
                destination,
                &self.kernel,
                &self.sizes,
                &properties,
                &self.arguments,
            )
        }
    }
}

/// Records a kernel launch. The kernel must have no arguments.
///
/// # Safety
/// The caller must pass arguments that satisfy UR's specification of
/// `urCommandBufferAppendKernelLaunchExp`.
pub(super) unsafe extern "C" fn append(
    buffer: ur_exp_command_buffer_handle_t,
    kernel: ur_kernel_handle_t,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    alternative_count: u32,
    alternatives: *mut ur_kernel_handle_t,
    after_count: u32,
    after: *const ur_exp_command_buffer_sync_point_t,
    wait_count: u32,
    waits: *const ur_event_handle_t,
    sync_point: *mut ur_exp_command_buffer_sync_point_t,
    event: *mut ur_event_handle_t,
    command: *mut ur_exp_command_buffer_command_handle_t,
) -> ur_result_t {
    let (count, none) = (0, ptr::null());
    // SAFETY: the caller upholds this function's contract. The list of kernel arguments is empty.
    unsafe {
        append_with_args(
            buffer,
            kernel,
            dimensions,
            offset,
            global,
            local,
            count,
            none,
            alternative_count,
            alternatives,
            after_count,
            after,
            wait_count,
            waits,
            sync_point,
            event,
            command,
        )
    }
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn append_with_args(
        buffer: Handle<CommandBuffer>,
        kernel: Handle<Kernel>,
        dimensions: u32,
        offset: *const usize,
        global: *const usize,
        local: *const usize,
        arguments(argument_count, first_argument): List<ur_exp_kernel_arg_properties_t>,
        alternatives(alternative_count, first_alternative): HandlesMut<Kernel>,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, event, command)?;
        buffer.check_wanted(&appended)?;
        if alternatives.iter().any(|other| ptr::eq(other, kernel)) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "the command's own kernel cannot be an alternative",
            ));
        }
        // SAFETY: the caller passes arrays with `dimensions` elements, and kernel arguments whose
        // values match their types.
        let (sizes, arguments) = unsafe {
            (
                Sizes::read(dimensions, offset, global, local)?,
                read_arguments(buffer, arguments)?,
            )
        };
        let owned = arguments.into_iter().map(|argument| argument.map(Argument::into_owned));
        let alternatives = alternatives.iter().map(|other| (other.to_ref(), Vec::new()));
        let launch = RecordedLaunch {
            kernel: kernel.to_ref(),
            arguments: owned.collect(),
            alternatives: alternatives.collect(),
            sizes,
        };
        // SAFETY: the caller guarantees that the kernel may run with these arguments in every run
        // of the command buffer.
        let command = unsafe { launch.command(buffer) }?;
        buffer.append(command, Some(launch), appended)
    }

    /// Updates kernel launches in a command buffer. If the call fails, it has changed no launch,
    /// with one exception. If a command buffer with events is updated and the driver fails, some
    /// launches may have changed.
    pub(super) fn update(
        buffer: Handle<CommandBuffer>,
        updates(count, first): List<ur_exp_command_buffer_update_kernel_launch_desc_t>,
    ) {
        // The command buffer is validated before the commands, so its errors take precedence.
        let run = buffer.updatable().map_err(|failure| match updates.first() {
            Some(update) if update.hCommand.is_null() => Failure::NULL_HANDLE,
            _ => failure,
        })?;
        // This variable is declared before the lock guard, so the replaced objects are dropped
        // after the lock is released.
        let _replaced;
        let mut changed: Vec<(Ref<super::RecordedCommand>, RecordedLaunch)> = Vec::new();
        let mut commands = Vec::with_capacity(updates.len());
        let _updating = buffer.updating.lock();
        for update in updates {
            let command = buffer.command(update.hCommand)?;
            // Several updates of one command are merged.
            let earlier = changed.iter().rev().find(|(other, _)| ptr::eq(&**other, &*command));
            let present = match earlier {
                Some((_, launch)) => Some(launch.clone()),
                None => command.launch.lock().clone(),
            };
            let present = present.ok_or_else(|| Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
                "this command launches no kernel",
            ))?;
            // SAFETY: the caller passes lists with the given lengths, and kernel arguments whose
            // values match their types.
            let new = unsafe { updated(buffer, present, update) }?;
            // SAFETY: the caller guarantees that the kernel may run with these arguments in every
            // run of the command buffer.
            let made = unsafe { new.command(buffer) }?;
            commands.push((command.node, made));
            changed.push((command, new));
        }
        _replaced = run.update(commands)?;
        for (command, launch) in &mut changed {
            // `launch` now contains the previous launch, which is dropped with `changed`.
            if let Some(present) = &mut *command.launch.lock() {
                std::mem::swap(present, launch);
            }
        }
        Ok(())
    }
}

/// Applies an update to a recorded launch, and returns the new launch.
///
/// # Errors
/// Returns `INVALID_VALUE` if the number of dimensions changes but the update has no new offset or
/// no new global size. Also returns `INVALID_VALUE` for a kernel that is not an alternative.
/// Returns `INVALID_KERNEL_ARGUMENT_INDEX` if an argument does not exist.
///
/// # Safety
/// The caller must ensure that the update's lists have the given lengths, and that the values of
/// kernel arguments match their types.
unsafe fn updated(
    buffer: &Shared<CommandBuffer>,
    present: RecordedLaunch,
    update: &ur_exp_command_buffer_update_kernel_launch_desc_t,
) -> Result<RecordedLaunch> {
    let RecordedLaunch {
        mut kernel,
        mut arguments,
        mut alternatives,
        mut sizes,
    } = present;
    let (offset, global) = (update.pNewGlobalWorkOffset, update.pNewGlobalWorkSize);
    if update.newWorkDim != 0 && update.newWorkDim != sizes.dimensions {
        if offset.is_null() || global.is_null() {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "new dimensions require a new offset and a new global size",
            ));
        }
        sizes.dimensions = update.newWorkDim;
        sizes.local = None;
    }
    let dimensions = sizes.dimensions;
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        if let Some(offset) = read_sizes(dimensions, offset, 0)? {
            sizes.offset = offset;
        }
        if let Some(global) = read_sizes(dimensions, global, 1)? {
            sizes.global = global;
            // Without a new local size, the adapter chooses one for the new global size.
            sizes.local = None;
        }
        if let Some(local) = read_sizes(dimensions, update.pNewLocalWorkSize, 1)? {
            sizes.local = Some(local);
        }
    }
    if !update.hNewKernel.is_null() && update.hNewKernel != kernel.handle() {
        let is_it = |(other, _): &(Ref<Kernel>, _)| other.handle() == update.hNewKernel;
        let index = alternatives.iter().position(is_it).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
                "this kernel was not named as an alternative when the command was recorded",
            )
        })?;
        // Continue with this kernel's latest arguments, because the update contains only changed
        // arguments.
        let (other, its_arguments) = &mut alternatives[index];
        std::mem::swap(&mut kernel, other);
        std::mem::swap(&mut arguments, its_arguments);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        let buffers = list(update.pNewMemObjArgList, update.numNewMemObjArgs as usize)?;
        for new in buffers {
            let argument = Argument::of_memory(buffer, new.hNewMemObjArg, 0)?;
            set(&mut arguments, new.argIndex, argument)?;
        }
        let pointers = list(update.pNewPointerArgList, update.numNewPointerArgs as usize)?;
        for new in pointers {
            // The update contains the address at which the pointer is stored.
            let place = new.pNewPointerArg.cast::<*const c_void>();
            let pointer = place.as_ref().copied().unwrap_or(ptr::null());
            let argument = Argument::of_pointer(buffer, pointer);
            set(&mut arguments, new.argIndex, argument)?;
        }
        for new in list(update.pNewValueArgList, update.numNewValueArgs as usize)? {
            let argument = if new.pNewValueArg.is_null() {
                Argument::Local(new.argSize)
            } else {
                Argument::Value(list(new.pNewValueArg.cast::<u8>(), new.argSize)?.into())
            };
            set(&mut arguments, new.argIndex, argument.into_owned())?;
        }
    }
    Ok(RecordedLaunch {
        kernel,
        arguments,
        alternatives,
        sizes,
    })
}

fn set(arguments: &mut Arguments<'static>, index: u32, argument: Argument<'static>) -> Result<()> {
    let index = index as usize;
    if index >= MAX_KERNEL_ARGUMENTS {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX,
            format!("the kernel has no argument {index}"),
        ));
    }
    if index >= arguments.len() {
        arguments.resize_with(index + 1, || None);
    }
    arguments[index] = Some(argument);
    Ok(())
}
