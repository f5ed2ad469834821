//! Python classes for channels.
//!
//! | file | holds |
//! |---|---|
//! | `array_class.rs` | the methods that items and slots have in common |
//! | `producer.rs` | producers, and the slots that they write |
//! | `consumer.rs` | consumers, and the items that they receive |
//! | `turn.rs` | turns of threads that use one producer or consumer |

#[macro_use]
mod array_class;
#[expect(unsafe_op_in_unsafe_fn, reason = "pyo3 calls `__getbuffer__` so")]
mod consumer;
#[expect(unsafe_op_in_unsafe_fn, reason = "pyo3 calls `__getbuffer__` so")]
mod producer;
mod turn;

pub(crate) use consumer::{Consumer, Item};
pub(crate) use producer::{Producer, Slot};

use crate::array::{Array, Dtype, Layout};
use crate::context::default_context;
use crate::error::{Failure, Result};
use crate::handle::ChannelHandle;
use crate::interrupt::{self, detached, detached_for};
use crate::memory::{SharedMemory, pending};
use crate::queue::Queue;
use crosshandle::channel::{self, ArrayLayout, ChannelOptions, Delivery, WhenFull};
use crosshandle::holder::{HoldOptions, Holder};
use crosshandle::{Access, Error};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A ring of slots in shared memory, through which processes send arrays or bytes.
///
/// `Channel(shape, dtype)` creates a channel of arrays of one shape and type.
/// `Channel(slot_size=n)` creates a channel of items of any shape and type, or of bytes, with at
/// most `n` bytes each. With `device="cuda:0"`, the slots are in the memory of that GPU.
///
/// A *producer* reserves a slot, writes an item into it, and publishes it. A *consumer* receives
/// the item and reads it in place. Any process can be both. Another process opens the channel from
/// its handle or its pickle, or by a name that a holder keeps.
///
/// `depth` is the number of items that can wait to be received, a power of two. A producer that
/// finds the channel full waits, or replaces the oldest item if `drop_oldest` is true. With
/// `broadcast`, each consumer receives each item. Otherwise an item goes to one consumer.
/// `producers` and `consumers` are the maximum numbers of both, `reserved` is the maximum number of
/// slots that a producer reserves, and `held` is the maximum number of items that a consumer keeps.
/// With `awaits_producers`, consumers wait for the next producer after all producers have left or
/// died.
///
/// >>> channel = crosshandle.Channel((480, 640, 3), "uint8", depth=4)
/// >>> producer, consumer = channel.producer(), channel.consumer()
/// >>> with producer.reserve() as slot:
/// ...     slot[:] = 7
/// >>> with consumer.receive(timeout=5) as frame:
/// ...     frame.number, frame.shape, int(frame.numpy().max())
/// (0, (480, 640, 3), 7)
///
/// Another process opens the channel from its handle:
///
/// >>> same = crosshandle.Channel.open(bytes(channel.handle()))
/// >>> same.shape, same.dtype, same.depth
/// ((480, 640, 3), 'uint8', 4)
/// >>> producer.close()
/// >>> for frame in consumer:              # ends, because all producers have left
/// ...     pass
/// >>> same.close()
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Channel(Mutex<Option<Arc<Parts>>>);

/// The objects that a channel, its producers and its consumers share.
struct Parts {
    channel: channel::Channel,
    /// The memory that contains the slots.
    contents: Arc<crosshandle::Memory>,
    context: crosshandle::Context,
    /// The element type and the shape of all items, if the channel was created so.
    array: Option<(Dtype, Vec<usize>)>,
}

/// The item or the slot of a channel that an array views. An item's slot is free when this value is
/// dropped.
pub(crate) struct InSlot {
    _item: Option<HeldItem>,
}

/// A received item. Its drop frees the slot, on a GPU after the commands of the consumer's stream.
struct HeldItem {
    item: Option<channel::Item>,
    queue: Option<Py<Queue>>,
}

impl Drop for HeldItem {
    fn drop(&mut self) {
        if let Some(item) = self.item.take()
            && let Some(queue) = &self.queue
        {
            // After an error, the library has freed the slot at once.
            let _ = item.release_on(&queue.get().queue);
        }
    }
}

impl Parts {
    fn new(channel: channel::Channel, context: crosshandle::Context) -> PyResult<Arc<Self>> {
        let array = channel.array().map(type_of).transpose()?;
        Ok(Arc::new(Self {
            contents: channel.contents(),
            channel,
            context,
            array,
        }))
    }

    /// Returns an array over a slot's memory. `address` is the address of the slot.
    fn array(
        &self,
        address: *mut u8,
        dtype: Dtype,
        shape: Vec<usize>,
        item: Option<HeldItem>,
        read_only: bool,
    ) -> PyResult<Array> {
        let offset = address.addr() - self.contents.as_ptr().addr();
        let layout = Layout::contiguous(dtype, shape, offset)
            .ok_or_else(|| PyValueError::new_err("the array is larger than the address space"))?;
        let memory = SharedMemory::of_channel(
            Arc::clone(&self.contents),
            self.context.clone(),
            InSlot { _item: item },
        );
        Array::of(Arc::new(memory), layout, read_only)
    }

    /// Returns whether the slots are in memory that the host cannot access.
    fn is_on_device(&self) -> bool {
        self.contents.bytes().is_err()
    }

    /// Returns the queue of a member. Without `stream`, the queue of a GPU's channel is the legacy
    /// default stream.
    fn queue(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<Queue>>> {
        if !self.is_on_device() {
            return match stream {
                None => Ok(None),
                Some(_) => Err(PyValueError::new_err(
                    "this channel is in host memory, so its members have no stream",
                )),
            };
        }
        if let Some(queue) = stream.and_then(|stream| stream.cast::<Queue>().ok()) {
            return Ok(Some(queue.clone().unbind()));
        }
        let is_cuda = self.context.device().info().dlpack_type == crosshandle::device::dlpack::CUDA;
        if stream.is_none() && !is_cuda {
            let queue = detached(py, || self.context.create_queue())?;
            return Ok(Some(Py::new(py, Queue::new(queue, None))?));
        }
        let device = PyString::new(py, &self.context.device().to_string());
        let context = default_context(py, Some(&device))?;
        let stream = match stream {
            Some(stream) => stream.clone(),
            None => 0_usize.into_pyobject(py)?.into_any(),
        };
        let queue = crate::context::streams(py)?.call_method1("queue", (stream, context))?;
        Ok(Some(queue.cast_into::<Queue>()?.unbind()))
    }
}

/// Converts the layout of an array in a channel.
fn type_of(array: &ArrayLayout) -> PyResult<(Dtype, Vec<usize>)> {
    let dtype = Dtype::from_code(array.code(), array.bits()).ok_or_else(|| {
        Failure::from(Error::Unsupported(format!(
            "this library has no elements with DLPack's type code {} and {} bits",
            array.code(),
            array.bits()
        )))
    })?;
    let sizes = array.shape().iter().map(|size| *size as usize);
    Ok((dtype, sizes.collect()))
}

/// Converts an element type and a shape to the layout of an array in a channel.
fn layout_of(dtype: &Dtype, shape: &[usize]) -> PyResult<ArrayLayout> {
    let Some(plain) = dtype.numbered() else {
        return Err(Failure::from(Error::Unsupported(format!(
            "a channel has no elements of {dtype}: send their bytes"
        )))
        .into());
    };
    let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
    let layout = ArrayLayout::new(plain.kind as u8, plain.bits, &shape);
    Ok(layout.map_err(Failure::from)?)
}

/// Formats a shape as Python does.
fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => {
            let sizes = Vec::from_iter(shape.iter().map(usize::to_string));
            format!("({})", sizes.join(", "))
        }
    }
}

impl Channel {
    fn new(channel: channel::Channel, context: crosshandle::Context) -> PyResult<Self> {
        let parts = Parts::new(channel, context)?;
        Ok(Self(Mutex::new(Some(parts))))
    }

    fn parts(&self) -> PyResult<Arc<Parts>> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.as_ref().map(Arc::clone);
        parts.ok_or_else(|| PyValueError::new_err("this channel was closed"))
    }

    /// Returns the library's object.
    pub(crate) fn channel(&self) -> PyResult<channel::Channel> {
        Ok(self.parts()?.channel.clone())
    }
}

fn holder(socket_dir: Option<PathBuf>, token: Option<String>) -> Holder {
    let mut holder = Holder::new();
    if let Some(directory) = socket_dir {
        holder = holder.socket_dir(directory);
    }
    if let Some(token) = token {
        holder = holder.token(token);
    }
    holder
}

#[pymethods]
impl Channel {
    #[new]
    #[pyo3(signature = (shape = None, dtype = None, *, slot_size = None, depth = 8, device = None, broadcast = false, drop_oldest = false, producers = 1, consumers = 1, reserved = 2, held = None, awaits_producers = false, name = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "most have defaults and are given by name"
    )]
    fn make(
        py: Python<'_>,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        slot_size: Option<usize>,
        depth: u32,
        device: Option<&Bound<'_, PyAny>>,
        broadcast: bool,
        drop_oldest: bool,
        producers: u8,
        consumers: u8,
        reserved: u8,
        held: Option<u8>,
        awaits_producers: bool,
        name: Option<String>,
    ) -> PyResult<Self> {
        let options = match (shape, slot_size) {
            (Some(shape), None) => {
                let dtype = dtype.map_or(Ok(Dtype::BYTE), Dtype::of)?;
                ChannelOptions::of_arrays(layout_of(&dtype, &Layout::shape_of(shape)?)?)
            }
            (None, Some(size)) if dtype.is_none() => ChannelOptions::new(size),
            _ => {
                return Err(PyTypeError::new_err(
                    "a channel needs either a shape and a dtype, or a slot_size",
                ));
            }
        };
        let mut options = options
            .depth(depth)
            .producers(producers)
            .consumers(consumers)
            .reserved(reserved)
            .awaits_producers(awaits_producers);
        if let Some(held) = held {
            options = options.held(held);
        }
        if broadcast {
            options = options.delivery(Delivery::Broadcast);
        }
        if drop_oldest {
            options = options.when_full(WhenFull::DropOldest);
        }
        if let Some(name) = name {
            options = options.name(name);
        }
        let context = default_context(py, device)?.get().0.clone();
        let channel = detached(py, || channel::Channel::create(&context, options))?;
        Self::new(channel, context)
    }

    /// Opens a channel that another process has created.
    ///
    /// `channel` is a handle, its bytes or its text, or the name under which a holder keeps the
    /// channel. A channel with slots in GPU memory needs the `device`. With `read_only`, the holder
    /// is asked for a handle that grants only the role of consumers. `socket_dir` and `token` are
    /// those of the holder. After `timeout` seconds, raises `TimedOutError`.
    ///
    /// >>> channel = crosshandle.Channel(slot_size=64)
    /// >>> same = crosshandle.Channel.open(channel.handle(read_only=True))
    /// >>> same.read_only
    /// True
    #[staticmethod]
    #[pyo3(signature = (channel, *, device = None, read_only = false, socket_dir = None, token = None, timeout = None))]
    fn open(
        py: Python<'_>,
        channel: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        read_only: bool,
        socket_dir: Option<PathBuf>,
        token: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let limit = interrupt::timeout(timeout)?;
        let context = default_context(py, device)?.get().0.clone();
        let name = channel.cast::<PyString>().ok();
        let name = name.map(|name| name.to_string());
        let opened = match name.filter(|name| !name.trim_start().starts_with("xh")) {
            Some(name) => {
                let mut holder = holder(socket_dir, token);
                if let Some(limit) = limit {
                    holder = holder.timeout(limit);
                }
                let access = match read_only {
                    true => Access::ReadOnly,
                    false => Access::ReadWrite,
                };
                detached_for(py, limit, || {
                    channel::Channel::open_name(&context, &holder, &name, access)
                })?
            }
            None => {
                let handle = ChannelHandle::new(channel)?.0;
                detached_for(py, limit, || channel::Channel::open(&context, &handle))?
            }
        };
        Self::new(opened, context)
    }

    /// Returns a handle, with which another process can open the channel. With `read_only`, that
    /// process can only be a consumer.
    #[pyo3(signature = (*, read_only = false))]
    fn handle(&self, read_only: bool) -> PyResult<ChannelHandle> {
        let channel = &self.parts()?.channel;
        let handle = match read_only {
            true => channel.consumer_handle(),
            false => channel.handle(),
        };
        Ok(ChannelHandle(handle.map_err(Failure::from)?))
    }

    /// Hands the channel over to the holder under a name. The channel then exists as long as the
    /// name, even after all its processes have ended. With `replaces`, an object that has the name
    /// is replaced. Returns the version of the name.
    ///
    /// >>> channel = crosshandle.Channel(slot_size=64, awaits_producers=True)
    /// >>> channel.hand_over("frames")                          # needs holder
    /// >>> same = crosshandle.Channel.open("frames")            # needs holder
    #[pyo3(signature = (name, *, replaces = false, socket_dir = None, token = None))]
    fn hand_over(
        &self,
        py: Python<'_>,
        name: &str,
        replaces: bool,
        socket_dir: Option<PathBuf>,
        token: Option<String>,
    ) -> PyResult<u64> {
        let parts = self.parts()?;
        let holder = holder(socket_dir, token);
        let options = HoldOptions::new().replaces(replaces);
        let held = detached(py, || parts.channel.hand_over(&holder, name, options))?;
        Ok(held.version)
    }

    /// Joins the channel as a producer.
    ///
    /// `stream` is the stream that writes the items of a GPU's channel, from torch, CuPy, numba or
    /// cuda.core, or a `Queue` (default: the legacy default stream). An item is complete when the
    /// stream has done its work up to the publication. Raises `LimitReachedError` if the channel
    /// has its maximum number of producers.
    #[pyo3(signature = (*, stream = None))]
    fn producer(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Producer> {
        let parts = self.parts()?;
        let queue = parts.queue(py, stream)?;
        let producer = detached(py, || parts.channel.producer())?;
        Ok(Producer::new(producer, parts, queue))
    }

    /// Joins the channel as a consumer.
    ///
    /// A consumer of a broadcast receives items that are published from now on. `stream` is the
    /// stream that reads the items of a GPU's channel, as for `producer`. The stream waits until an
    /// item is complete, and an item's slot is free when the stream has done its work up to the
    /// item's release. Raises `LimitReachedError` if the channel has its maximum number of
    /// consumers.
    ///
    /// With `writable`, the consumer may write to its items, which torch requires of memory that it
    /// does not copy. Only one consumer receives such an item, so `broadcast` excludes `writable`.
    #[pyo3(signature = (*, stream = None, writable = false))]
    fn consumer(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        writable: bool,
    ) -> PyResult<Consumer> {
        let parts = self.parts()?;
        if writable && parts.channel.access() == Access::ReadOnly {
            return Err(Failure::from(Error::ReadOnly).into());
        }
        if writable && parts.channel.delivery() == Delivery::Broadcast {
            let error = "other consumers read the items of a broadcast, so they are not writable";
            return Err(Failure::from(Error::invalid(error)).into());
        }
        let queue = parts.queue(py, stream)?;
        let consumer = detached(py, || parts.channel.consumer())?;
        Ok(Consumer::new(consumer, parts, queue, !writable))
    }

    /// Joins the channel as a consumer, and yields its items until all producers have left.
    fn __iter__(&self, py: Python<'_>) -> PyResult<Consumer> {
        self.consumer(py, None, false)
    }

    /// Joins the channel as a consumer, and yields its items as `async for` does.
    fn __aiter__(&self, py: Python<'_>) -> PyResult<Consumer> {
        self.consumer(py, None, false)
    }

    /// The shape of all items, or `None` if the channel was created with a `slot_size`.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let parts = self.parts()?;
        let array = parts.array.as_ref();
        array.map(|(_, shape)| PyTuple::new(py, shape)).transpose()
    }

    /// The name of the element type of all items, or `None` if the channel was created with a
    /// `slot_size`.
    #[getter]
    fn dtype(&self) -> PyResult<Option<String>> {
        let parts = self.parts()?;
        Ok(parts.array.as_ref().map(|(dtype, _)| dtype.to_string()))
    }

    /// The maximum size of an item in bytes.
    #[getter]
    fn slot_size(&self) -> PyResult<usize> {
        Ok(self.parts()?.channel.slot_size())
    }

    /// How many items can wait to be received.
    #[getter]
    fn depth(&self) -> PyResult<u32> {
        Ok(self.parts()?.channel.depth())
    }

    /// Whether each consumer receives each item.
    #[getter]
    fn broadcast(&self) -> PyResult<bool> {
        Ok(self.parts()?.channel.delivery() == Delivery::Broadcast)
    }

    /// Whether a producer replaces the oldest item if the channel is full.
    #[getter]
    fn drop_oldest(&self) -> PyResult<bool> {
        Ok(self.parts()?.channel.when_full() == WhenFull::DropOldest)
    }

    /// The name of the device whose memory contains the slots.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.parts()?.context.device().to_string())
    }

    /// Whether this process can only be a consumer.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.parts()?.channel.access() == Access::ReadOnly)
    }

    /// The number of items that were published so far.
    #[getter]
    fn published(&self) -> PyResult<u64> {
        Ok(self.parts()?.channel.published())
    }

    /// The numbers of producers and of consumers that are alive.
    #[getter]
    fn members(&self) -> PyResult<(usize, usize)> {
        Ok(self.parts()?.channel.members())
    }

    /// Closes this object. The channel itself stays open in this process while its producers,
    /// consumers and items exist.
    fn close(&self, py: Python<'_>) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.take();
        py.detach(|| drop(parts));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let parts = slf.get().parts()?;
        crosshandle::adapter_support::check_birth(&parts.context).map_err(Failure::from)?;
        let handle = match parts.channel.access() {
            Access::ReadOnly => parts.channel.consumer_handle(),
            Access::ReadWrite => parts.channel.handle(),
        };
        let handle = handle.map_err(Failure::from)?;
        // The receiver may know the device under another name.
        let info = parts.context.device().info();
        let device = format!("{}:{}", info.backend, info.uuid);
        let data = [handle.as_bytes(), device.as_bytes()].concat();
        pending::reduced(slf, "open_channel", &PyBytes::new(slf.py(), &data))
    }

    fn __repr__(&self) -> String {
        let Ok(parts) = self.parts() else {
            return "<crosshandle.Channel, closed>".into();
        };
        let items = match &parts.array {
            Some((dtype, shape)) => format!("{} of {dtype}", shape_text(shape)),
            None => format!("at most {} bytes", parts.channel.slot_size()),
        };
        let (depth, device) = (parts.channel.depth(), parts.context.device());
        format!("<crosshandle.Channel of {depth} items, {items}, on {device}>")
    }
}

/// Opens a channel from its handle's bytes in a context, for `_pending.py`.
#[pyfunction]
pub(crate) fn open_channel(
    py: Python<'_>,
    context: &crate::context::Context,
    handle: &Bound<'_, PyAny>,
) -> PyResult<Channel> {
    let handle = ChannelHandle::new(handle)?.0;
    let context = context.0.clone();
    let opened: Result<_> = detached(py, || channel::Channel::open(&context, &handle));
    Channel::new(opened?, context)
}
