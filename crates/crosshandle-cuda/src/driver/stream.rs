//! Streams, the calls that submit work to them, and the driver's own events.
//!
//! For all calls, the stream's context must be current (see `Driver::enter`).

use super::{ArrayHandle, DeviceAddress, Driver, EventHandle, NOT_READY, SUCCESS, StreamHandle};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUevent_flags, CUmemorytype, CUstream_flags, CUstreamCaptureMode,
};
use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr;

/// A function that a stream calls with the pointer that was passed along with it.
pub(super) type HostCallback = unsafe extern "C" fn(*mut c_void);

/// A stream that this library created or took over. Work that was submitted still runs after the
/// drop.
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
        // SAFETY: this object owns the stream, which is destroyed once. The driver keeps the stream
        // until its work has finished.
        let code = unsafe { (self.driver.library.stream_destroy)(self.handle) };
        self.driver.note("cuStreamDestroy", code);
    }
}

/// Returns whether an error occurred only because a thread is recording a graph.
pub(crate) fn is_capturing(error: &Error) -> bool {
    matches!(error, Error::Driver { code, .. } if CAPTURE_ERRORS.contains(code))
}

/// The error codes of stream capture, from `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to
/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
const CAPTURE_ERRORS: RangeInclusive<i64> = 900..=908;

/// An event of the driver that this object owns.
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
        // SAFETY: this object owns the event, which is destroyed once. The driver keeps the event
        // as long as work refers to it.
        let code = unsafe { (self.driver.library.event_destroy)(self.handle) };
        self.driver.note("cuEventDestroy", code);
    }
}

impl Driver {
    /// Creates a stream in the current context. The stream does not wait for the default stream.
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

    /// Takes a stream over from the program. The drop of the result destroys the stream.
    ///
    /// # Safety
    /// No other code destroys the stream.
    pub(crate) unsafe fn take_stream(&'static self, handle: StreamHandle) -> Stream {
        Stream {
            driver: self,
            handle,
        }
    }

    /// Returns whether all work of a stream has finished. An error may come from any earlier
    /// command.
    pub(crate) fn is_stream_done(&self, stream: StreamHandle) -> Result<bool> {
        let code = (self.library.stream_query)(stream);
        if code == NOT_READY {
            return Ok(false);
        }
        self.check("cuStreamQuery", code).map(|()| true)
    }

    /// Lets the calling thread query its streams while another thread records a graph. Without this
    /// call, a query would invalidate the recording.
    pub(crate) fn ignore_captures(&self) {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let code = (self.library.thread_exchange_capture_mode)(&mut mode);
        self.note("cuThreadExchangeStreamCaptureMode", code);
    }

    /// Runs calls that the calling thread may otherwise not make while another thread captures a
    /// stream.
    pub(crate) fn beside_captures<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let code = (self.library.thread_exchange_capture_mode)(&mut mode);
        self.note("cuThreadExchangeStreamCaptureMode", code);
        let result = call();
        if code == SUCCESS {
            // Restores the thread's previous mode.
            let code = (self.library.thread_exchange_capture_mode)(&mut mode);
            self.note("cuThreadExchangeStreamCaptureMode", code);
        }
        result
    }

    /// Makes a stream wait for a recorded event.
    pub(crate) fn wait_for_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.check(
            "cuStreamWaitEvent",
            (self.library.stream_wait_event)(stream, event, 0),
        )
    }

    /// Makes a stream call a host function, which must not call the driver.
    ///
    /// # Safety
    /// `function(data)` may be called once from another thread, and does not unwind.
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

    /// Copies `len` bytes between any memory, including host memory.
    ///
    /// # Safety
    /// Both ranges stay valid until the stream has run this copy.
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
    /// Both sides stay valid until the stream has run this copy.
    pub(crate) unsafe fn copy_rect(&self, stream: StreamHandle, copy: &RectCopy) -> Result<()> {
        // SAFETY: promised by the caller. The description is read before the call returns.
        self.check("cuMemcpy3DAsync", unsafe {
            (self.library.memcpy_3d)(&copy.description(), stream)
        })
    }

    /// Fills memory with `count` bytes, 16-bit words or 32-bit words. `to` is aligned for them.
    ///
    /// # Safety
    /// The range stays valid until the stream has run this fill.
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

    /// Creates an event in the current context, with or without timestamps.
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

    /// Takes an event over from the program. The drop of the result destroys the event.
    ///
    /// # Safety
    /// No other code destroys the event.
    pub(crate) unsafe fn take_event(&'static self, handle: EventHandle) -> CudaEvent {
        CudaEvent {
            driver: self,
            handle,
        }
    }

    /// Records the current position of a stream in an event.
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

    /// Returns the milliseconds between two events that have timestamps and have happened. The
    /// 32-bit float has about seven significant digits.
    pub(crate) fn milliseconds_between(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let mut milliseconds = 0.0;
        self.check(
            "cuEventElapsedTime",
            (self.library.event_elapsed_time)(&mut milliseconds, start, end),
        )?;
        Ok(milliseconds)
    }
}

/// The source or the destination of a copied rectangle.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Rows(Rows),
    /// A part of an array. The numbers are the part's first byte in a row, its first row, and its
    /// first slice or layer.
    Array(ArrayHandle, [usize; 3]),
}

/// Rows and slices of memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub start: DeviceAddress,
    pub row_pitch: usize,
    /// The distance between the starts of two slices, in rows.
    pub slice_rows: usize,
    /// Whether this is host memory that the driver does not know.
    pub is_unknown: bool,
}

/// A copy of a rectangle.
#[derive(Clone, Copy)]
pub(crate) struct RectCopy {
    pub to: Side,
    pub from: Side,
    /// The size of the rectangle in bytes, rows and slices.
    pub sizes: [usize; 3],
}

impl RectCopy {
    /// Returns whether a side is an array.
    pub(crate) fn has_array(&self) -> bool {
        matches!(self.to, Side::Array(..)) || matches!(self.from, Side::Array(..))
    }

    /// Returns the copy with `is_unknown` set as the driver reports it for the memory of each side.
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

    /// Returns the copy in the form that the driver accepts.
    pub(super) fn description(&self) -> CUDA_MEMCPY3D {
        let kind = |side: &Side| match side {
            Side::Array(..) => CUmemorytype::CU_MEMORYTYPE_ARRAY,
            Side::Rows(rows) if rows.is_unknown => CUmemorytype::CU_MEMORYTYPE_HOST,
            // The driver itself finds out where this memory lies.
            Side::Rows(_) => CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        };
        // SAFETY: the structure consists of numbers, null pointers, and enumerations that are set
        // here.
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
