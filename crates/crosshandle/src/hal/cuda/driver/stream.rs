//! Streams, the calls that queue work in them, and the driver's own events.
//!
//! In all calls the stream's context must be current (see `Driver::enter`).

use super::{ArrayHandle, DeviceAddress, Driver, EventHandle, NOT_READY, SUCCESS, StreamHandle};
use crate::error::{Error, Result};
use crate::os::process;
use cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUevent_flags, CUmemorytype, CUstream_flags, CUstreamCaptureMode,
};
use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr;

/// A function that a stream calls, with the pointer that was given along.
pub(crate) type HostCallback = unsafe extern "C" fn(*mut c_void);

/// A stream of our own. What was queued still runs after this is dropped.
pub(crate) struct Stream {
    driver: &'static Driver,
    handle: StreamHandle,
}

impl Stream {
    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // SAFETY: our own, destroyed once; the driver keeps it until its work is done.
        let code = unsafe { (self.driver.library.stream_destroy)(self.handle) };
        self.driver.note("cuStreamDestroy", code);
    }
}

/// Returns whether an error only says that a thread records a graph at the moment.
pub(crate) fn is_capturing(error: &Error) -> bool {
    matches!(error, Error::Driver { code, .. } if CAPTURE_ERRORS.contains(code))
}

/// The errors of stream capture: from `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to
/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
const CAPTURE_ERRORS: RangeInclusive<i64> = 900..=908;

/// An event of the driver, our own.
pub(crate) struct CudaEvent {
    driver: &'static Driver,
    handle: EventHandle,
}

impl CudaEvent {
    pub(crate) fn handle(&self) -> EventHandle {
        self.handle
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // SAFETY: our own, destroyed once; the driver keeps it as long as work refers to it.
        let code = unsafe { (self.driver.library.event_destroy)(self.handle) };
        self.driver.note("cuEventDestroy", code);
    }
}

impl Driver {
    /// Creates a stream that doesn't wait for the default stream, in the current context.
    pub(crate) fn create_stream(&'static self) -> Result<Stream> {
        let mut handle = StreamHandle::NONE;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        let code = (self.library.stream_create)(&mut handle, flags);
        self.check("cuStreamCreate", code)?;
        Ok(Stream {
            driver: self,
            handle,
        })
    }

    /// Takes a stream over from the program: the drop of the result destroys it.
    ///
    /// # Safety
    /// Nobody else destroys the stream.
    pub(crate) unsafe fn take_stream(&'static self, handle: StreamHandle) -> Stream {
        Stream {
            driver: self,
            handle,
        }
    }

    /// Returns whether everything in a stream is done. An error may be that of any earlier command.
    pub(crate) fn is_stream_done(&self, stream: StreamHandle) -> Result<bool> {
        let code = (self.library.stream_query)(stream);
        if code == NOT_READY {
            return Ok(false);
        }
        self.check("cuStreamQuery", code).map(|()| true)
    }

    /// Lets the calling thread ask about its streams while another thread records a graph. Without
    /// this call, asking would spoil the recording.
    pub(crate) fn ignore_captures(&self) {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let code = (self.library.thread_exchange_capture_mode)(&mut mode);
        self.note("cuThreadExchangeStreamCaptureMode", code);
    }

    /// Makes calls that the calling thread may otherwise not make while another one captures a stream.
    pub(crate) fn beside_captures<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let code = (self.library.thread_exchange_capture_mode)(&mut mode);
        self.note("cuThreadExchangeStreamCaptureMode", code);
        let result = call();
        if code == SUCCESS {
            // What the thread had before.
            let code = (self.library.thread_exchange_capture_mode)(&mut mode);
            self.note("cuThreadExchangeStreamCaptureMode", code);
        }
        result
    }

    /// Lets a stream wait for a recorded event.
    pub(crate) fn wait_for_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.check(
            "cuStreamWaitEvent",
            (self.library.stream_wait_event)(stream, event, 0),
        )
    }

    /// Lets a stream call a function of the host, which must not call the driver.
    ///
    /// # Safety
    /// `function(data)` may be called from another thread, once, and doesn't unwind.
    pub(crate) unsafe fn call_host(
        &self,
        stream: StreamHandle,
        function: HostCallback,
        data: *mut c_void,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuLaunchHostFunc", unsafe {
            (self.library.launch_host_func)(stream, function, data)
        })
    }

    /// Copies `len` bytes, from and to any memory, the host's included.
    ///
    /// # Safety
    /// Both ranges stay valid until the stream is past this.
    pub(crate) unsafe fn copy(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: DeviceAddress,
        len: usize,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemcpyAsync", unsafe {
            (self.library.memcpy)(to, from, len, stream)
        })
    }

    /// Copies a rectangle.
    ///
    /// # Safety
    /// Both sides stay valid until the stream is past this.
    pub(crate) unsafe fn copy_rect(&self, stream: StreamHandle, copy: &RectCopy) -> Result<()> {
        // SAFETY: promised by the caller; the description is read before the call returns.
        self.check("cuMemcpy3DAsync", unsafe {
            (self.library.memcpy_3d)(&copy.description(), stream)
        })
    }

    /// Fills with a byte, a 16-bit or a 32-bit word; `to` is aligned for it, and `count` counts
    /// such words.
    ///
    /// # Safety
    /// The range stays valid until the stream is past this.
    pub(crate) unsafe fn fill(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        word: FillWord,
        count: usize,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe {
            match word {
                FillWord::Byte(byte) => self.check(
                    "cuMemsetD8Async",
                    (self.library.memset_8)(to, byte, count, stream),
                ),
                FillWord::Half(half) => self.check(
                    "cuMemsetD16Async",
                    (self.library.memset_16)(to, half, count, stream),
                ),
                FillWord::Word(word) => self.check(
                    "cuMemsetD32Async",
                    (self.library.memset_32)(to, word, count, stream),
                ),
            }
        }
    }

    /// Creates an event, in the current context, with or without timestamps.
    pub(crate) fn create_event(&'static self, timestamps: bool) -> Result<CudaEvent> {
        let flags = if timestamps {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let mut handle = EventHandle::NONE;
        self.check(
            "cuEventCreate",
            (self.library.event_create)(&mut handle, flags as c_uint),
        )?;
        Ok(CudaEvent {
            driver: self,
            handle,
        })
    }

    /// Takes an event over from the program: the drop of the result destroys it.
    ///
    /// # Safety
    /// Nobody else destroys the event.
    pub(crate) unsafe fn take_event(&'static self, handle: EventHandle) -> CudaEvent {
        CudaEvent {
            driver: self,
            handle,
        }
    }

    /// Notes in an event how far a stream is.
    pub(crate) fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.check("cuEventRecord", (self.library.event_record)(event, stream))
    }

    /// Returns whether a recorded event has happened.
    pub(crate) fn is_event_done(&self, event: EventHandle) -> Result<bool> {
        let code = (self.library.event_query)(event);
        if code == NOT_READY {
            return Ok(false);
        }
        self.check("cuEventQuery", code).map(|()| true)
    }

    /// Returns the milliseconds between two events with timestamps that have happened: a 32-bit float,
    /// so about seven digits.
    pub(crate) fn milliseconds_between(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let mut milliseconds = 0.0;
        self.check(
            "cuEventElapsedTime",
            (self.library.event_elapsed_time)(&mut milliseconds, start, end),
        )?;
        Ok(milliseconds)
    }
}

/// A side of a copied rectangle.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Rows(Rows),
    /// A part of an array, and its first byte in a row, first row and first slice or layer.
    Array(ArrayHandle, [usize; 3]),
}

/// Rows and slices of memory. Sizes are in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) start: DeviceAddress,
    pub(crate) row_pitch: usize,
    /// A slice starts this many rows after the one before.
    pub(crate) slice_rows: usize,
    /// It is memory of the host that the driver doesn't know.
    pub(crate) is_unknown: bool,
}

/// A copy of a rectangle.
#[derive(Clone, Copy)]
pub(crate) struct RectCopy {
    pub(crate) to: Side,
    pub(crate) from: Side,
    /// Bytes, rows, slices.
    pub(crate) sizes: [usize; 3],
}

impl RectCopy {
    /// Returns whether a side is an array.
    pub(crate) fn has_array(&self) -> bool {
        matches!(self.to, Side::Array(..)) || matches!(self.from, Side::Array(..))
    }

    /// Returns the copy with what the driver says of its memory.
    pub(crate) fn located(&self, driver: &Driver) -> Self {
        let locate = |side: Side| match side {
            Side::Rows(rows) => Side::Rows(Rows {
                is_unknown: !driver.knows(rows.start),
                ..rows
            }),
            array @ Side::Array(..) => array,
        };
        Self {
            to: locate(self.to),
            from: locate(self.from),
            ..*self
        }
    }

    /// Returns the copy as the driver takes it.
    pub(super) fn description(&self) -> CUDA_MEMCPY3D {
        let kind = |side: &Side| match side {
            Side::Array(..) => CUmemorytype::CU_MEMORYTYPE_ARRAY,
            Side::Rows(rows) if rows.is_unknown => CUmemorytype::CU_MEMORYTYPE_HOST,
            // Any memory, wherever it is: the driver knows.
            Side::Rows(_) => CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        };
        // SAFETY: numbers, null pointers, and enumerations that are set here.
        let mut copy: CUDA_MEMCPY3D = unsafe {
            let mut zeroed = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
            let place = zeroed.as_mut_ptr();
            (&raw mut (*place).srcMemoryType).write(kind(&self.from));
            (&raw mut (*place).dstMemoryType).write(kind(&self.to));
            zeroed.assume_init()
        };
        match self.from {
            Side::Rows(rows) => {
                copy.srcHost = ptr::with_exposed_provenance(rows.start as usize);
                copy.srcDevice = rows.start;
                copy.srcPitch = rows.row_pitch;
                copy.srcHeight = rows.slice_rows;
            }
            Side::Array(array, [x, y, z]) => {
                copy.srcArray = ptr::with_exposed_provenance_mut(array.number());
                (copy.srcXInBytes, copy.srcY, copy.srcZ) = (x, y, z);
            }
        }
        match self.to {
            Side::Rows(rows) => {
                copy.dstHost = ptr::with_exposed_provenance_mut(rows.start as usize);
                copy.dstDevice = rows.start;
                copy.dstPitch = rows.row_pitch;
                copy.dstHeight = rows.slice_rows;
            }
            Side::Array(array, [x, y, z]) => {
                copy.dstArray = ptr::with_exposed_provenance_mut(array.number());
                (copy.dstXInBytes, copy.dstY, copy.dstZ) = (x, y, z);
            }
        }
        [copy.WidthInBytes, copy.Height, copy.Depth] = self.sizes;
        copy
    }
}

/// The word that a fill repeats.
#[derive(Clone, Copy)]
pub(crate) enum FillWord {
    Byte(u8),
    Half(u16),
    Word(u32),
}
