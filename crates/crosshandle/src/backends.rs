//! The backends of this build.

use crosshandle_hal::Backend;
use crosshandle_handle::BackendKind;
use crosshandle_holder::Drivers;

/// Returns all backends of this build, the host first.
pub(crate) fn all() -> &'static [&'static dyn Backend] {
    &[
        &crosshandle_host::HostBackend,
        #[cfg(feature = "cuda")]
        &crosshandle_cuda::CudaBackend,
        #[cfg(feature = "level-zero")]
        &crosshandle_level_zero::LevelZeroBackend,
    ]
}

/// Returns the backend of a kind, if this build contains it.
pub(crate) fn of(kind: BackendKind) -> Option<&'static dyn Backend> {
    let mut all = all().iter().copied();
    all.find(|backend| backend.kind() == kind)
}

/// What holders ask the backends of this build.
pub(crate) const DRIVERS: Drivers = Drivers {
    owns_descriptor: |kind, file, note| {
        of(kind).is_some_and(|backend| backend.owns_descriptor(file, note))
    },
    work_outlives_process: |kind| of(kind)?.work_outlives_process(),
};

#[cfg(test)]
mod tests {
    use super::all;
    use crosshandle_hal::BackendBlob;
    use crosshandle_os::memfd;
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};

    #[test]
    fn no_driver_owns_what_is_no_memory_of_a_driver() {
        let (socket, _) = crosshandle_os::socket::pair().expect("two sockets");
        let (pipe, _write) = rustix::pipe::pipe().expect("a pipe");
        let open = |path: &str| OwnedFd::from(File::open(path).expect("opened"));
        let program = std::env::current_exe().expect("this program");
        let others = [
            memfd::create("test", 4096).expect("memory"),
            memfd::create_unsealed("test", 4096).expect("memory"),
            socket,
            pipe,
            // A file system that the sender controls may serve this file.
            File::open(program).expect("opened").into(),
            open("/dev/null"),
            open("/"),
            open("/proc/self/stat"),
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd"),
        ];
        for backend in all() {
            for (index, other) in others.iter().enumerate() {
                let owns = backend.owns_descriptor(other.as_fd(), &BackendBlob::NONE);
                assert!(!owns, "{}: {index}", backend.kind());
            }
        }
    }
}
