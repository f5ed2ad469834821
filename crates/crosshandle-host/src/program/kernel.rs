//! Kernels on the host.

use super::{error, limits};
use crosshandle_hal::BackendKernel;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{ArgumentKind, KernelArguments, KernelProperties, number};
use opencl_cpu::{Argument, Kernel, Parameter};
use std::sync::OnceLock;

/// A kernel of the runtime.
pub(super) struct HostKernel {
    kernel: Kernel,
    properties: KernelProperties,
    /// The kinds and lengths of the arguments that the runtime accepted last. Equal arguments need
    /// no second check, unless they include images or samplers.
    accepted: Mutex<Vec<(ArgumentKind, usize)>>,
    /// The kinds of arguments that the parameters take. Filled on the first check.
    parameters: OnceLock<Vec<Parameter>>,
}

impl HostKernel {
    pub(super) fn new(kernel: Kernel) -> Self {
        let info = kernel.info();
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let some = |number: usize| (number != 0).then(|| narrow(number));
        let available = limits().map_or(0, |limits| limits.shared_memory as usize);
        let own = usize::try_from(info.local_memory).unwrap_or(usize::MAX);
        let is_required = info.required_size != [0; 3];
        let properties = KernelProperties {
            shared_memory: own,
            dynamic_shared_memory: available.saturating_sub(own),
            local_memory: usize::try_from(info.private_memory).unwrap_or(usize::MAX),
            parameter_count: Some(info.parameters),
            required_block: is_required.then(|| info.required_size.map(narrow)),
            subgroup: some(info.subgroup_size),
            required_subgroup: some(info.required_subgroup_size),
            block_multiple: some(info.size_multiple),
            ..KernelProperties::new(narrow(info.group_items))
        };
        Self {
            kernel,
            properties,
            accepted: Mutex::default(),
            parameters: OnceLock::new(),
        }
    }

    /// Returns the runtime's kernel.
    pub(super) fn inner(&self) -> &Kernel {
        &self.kernel
    }

    /// Checks that exactly the parameters for images and samplers get such objects. The runtime
    /// would treat any other argument as a pointer to an object.
    fn check_objects(&self, given: &KernelArguments) -> Result<()> {
        let parameters = self.parameters.get_or_init(|| {
            let indices = 0..self.kernel.info().parameters;
            indices
                .filter_map(|index| self.kernel.parameter(index))
                .collect()
        });
        for (index, ((kind, _), parameter)) in given.kinds().zip(parameters).enumerate() {
            let takes_object = matches!(parameter, Parameter::Image | Parameter::Sampler);
            if (kind == ArgumentKind::Object) != takes_object {
                return Err(Error::invalid(format!(
                    "parameter {index} of kernel '{}' takes {}, but argument {index} is {}",
                    self.kernel.info().name,
                    match parameter {
                        Parameter::Value => "a value",
                        Parameter::Address => "an address",
                        Parameter::Local => "shared memory",
                        Parameter::Image => "an image",
                        Parameter::Sampler => "a sampler",
                    },
                    match kind {
                        ArgumentKind::Value => "a value",
                        ArgumentKind::Address => "an address",
                        ArgumentKind::Local => "shared memory",
                        ArgumentKind::Object => "an image or a sampler",
                    },
                )));
            }
        }
        Ok(())
    }
}

/// Returns the arguments in the form that the runtime takes.
pub(super) fn arguments(
    arguments: &KernelArguments,
) -> impl ExactSizeIterator<Item = Argument<'_>> {
    arguments.kinds().map(|(kind, bytes)| match kind {
        ArgumentKind::Value | ArgumentKind::Object => Argument::Value(bytes),
        ArgumentKind::Address => Argument::Address(number(bytes)),
        ArgumentKind::Local => Argument::Local(number(bytes)),
    })
}

impl BackendKernel for HostKernel {
    fn properties(&self) -> &KernelProperties {
        &self.properties
    }

    fn check_arguments(&self, given: &KernelArguments) -> Result<()> {
        // For shared memory, the length does not matter.
        let shape = |(kind, bytes): (ArgumentKind, &[u8])| (kind, bytes.len());
        // Images and samplers have the same kind and length, but each parameter takes only one of
        // them.
        let has_objects = given.kinds().any(|(kind, _)| kind == ArgumentKind::Object);
        let mut accepted = self.accepted.lock();
        if !has_objects && given.kinds().map(shape).eq(accepted.iter().copied()) {
            return Ok(());
        }
        self.check_objects(given)?;
        let checked = self.kernel.check_arguments(arguments(given));
        checked.map_err(|(index, failure)| match failure.is_wrong_argument() {
            true => Error::invalid(format!(
                "argument {index} does not suit parameter {index} of kernel '{}': {failure}",
                self.kernel.info().name
            )),
            false => error(failure),
        })?;
        *accepted = given.kinds().map(shape).collect();
        Ok(())
    }

    fn suggest_block(&self, _dynamic_shared: usize, limit: u32) -> Result<u32> {
        // The size is a multiple of the vector width, so that the compiler can vectorise the loop.
        // It is small enough that each thread of the CPU gets several groups.
        Ok(self
            .properties
            .block_multiple
            .unwrap_or(1)
            .min(limit)
            .max(1))
    }

    fn concurrent_blocks(&self, _threads: u32, _dynamic_shared: usize, _units: u32) -> Result<u32> {
        // The runtime promises no more, because each thread of the CPU runs one block after the
        // other.
        Ok(limits().map_or(1, |limits| limits.cooperative_blocks))
    }

    fn raw(&self) -> usize {
        self.kernel.raw()
    }
}
