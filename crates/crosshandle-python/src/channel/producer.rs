//! The Python classes `Producer` and `Slot`.

use super::turn::Turn;
use super::{Parts, layout_of, shape_text};
use crate::array::arguments::{Data, room_for};
use crate::array::{Array, Dtype, Layout};
use crate::error::{Failure, exception};
use crate::foreign::{Foreign, Place, copied_to_slot, describe, submitted_to_slot};
use crate::interrupt::{self, SLICE, Slices};
use crate::queue::Queue;
use crosshandle::Error;
use crosshandle::channel::{self, Unpublished};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A producer of a channel, from `Channel.producer`.
///
/// `send` copies an array or bytes into a slot. `reserve` returns a slot that the program writes in
/// place. Dropping or closing a producer makes it leave the channel. Any thread may use a producer,
/// and only one thread at a time waits for room.
///
/// >>> channel = crosshandle.Channel((2, 3), "float32", depth=1)
/// >>> producer, consumer = channel.producer(), channel.consumer()
/// >>> producer.send(crosshandle.ones((2, 3), "float32"), user=b"first", timeout=5)
/// 0
/// >>> producer.try_send(crosshandle.ones((2, 3), "float32")) is None     # the channel is full
/// True
/// >>> consumer.receive(timeout=5).array.tolist()
/// [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
/// >>> with producer.reserve(timeout=5) as slot:
/// ...     slot[0] = 2
/// >>> producer.members
/// (1, 1)
/// >>> producer.close()
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Producer {
    turn: Turn<channel::Producer>,
    parts: Arc<Parts>,
    queue: Option<Py<Queue>>,
}

impl Producer {
    pub(super) fn new(
        producer: channel::Producer,
        parts: Arc<Parts>,
        queue: Option<Py<Queue>>,
    ) -> Self {
        Self {
            turn: Turn::new(producer, "producer"),
            parts,
            queue,
        }
    }

    fn check_birth(&self) -> PyResult<()> {
        let context = &self.parts.context;
        Ok(crosshandle::adapter_support::check_birth(context).map_err(Failure::from)?)
    }

    fn reserve_slot(&self, py: Python<'_>, slices: &Slices) -> PyResult<channel::Slot> {
        self.check_birth()?;
        let mut producer = self.turn.take(py, slices)?;
        loop {
            // Another thread may close this object meanwhile.
            if self.turn.is_closed() {
                return Err(PyValueError::new_err("this producer was closed"));
            }
            let (slice, is_last) = slices.next(SLICE);
            let producer = &mut *producer;
            match py.detach(|| producer.reserve_timeout(slice)) {
                Err(Error::TimedOut(_)) if !is_last => py.check_signals()?,
                reserved => return Ok(reserved.map_err(Failure::from)?),
            }
        }
    }

    /// Publishes a slot. After the timeout, returns the slot, which is still reserved. Drops the
    /// slot after any other error.
    fn publish(
        &self,
        py: Python<'_>,
        mut slot: channel::Slot,
        slices: &Slices,
    ) -> PyResult<Result<u64, channel::Slot>> {
        self.check_birth()?;
        let mut producer = self.turn.take(py, slices)?;
        loop {
            // Another thread may close this object meanwhile.
            if self.turn.is_closed() {
                return Err(PyValueError::new_err("this producer was closed"));
            }
            let (slice, is_last) = slices.next(SLICE);
            let producer = &mut *producer;
            let queue = self.queue.as_ref();
            let published = py.detach(|| match queue {
                None => producer.publish_timeout(slot, slice).map_err(Box::new),
                Some(queue) => {
                    let published = producer.publish_on(&queue.get().queue, slot, slice);
                    published.map_err(Box::new)
                }
            });
            match published {
                Ok(number) => return Ok(Ok(number)),
                Err(unpublished) => match *unpublished {
                    Unpublished {
                        error: Error::TimedOut(_),
                        slot: back,
                    } => {
                        if is_last {
                            return Ok(Err(back));
                        }
                        py.check_signals()?;
                        slot = back;
                    }
                    unpublished => return Err(Failure::from(unpublished.error).into()),
                },
            }
        }
    }

    /// Copies a value into a slot.
    fn fill(
        &self,
        py: Python<'_>,
        slot: &mut channel::Slot,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let is_bytes = value.is_instance_of::<PyBytes>()
            || value.is_instance_of::<PyByteArray>()
            || value.is_instance_of::<PyMemoryView>();
        let foreign = match value.cast::<Array>() {
            Ok(array) => {
                array.get().wait_ready(py, None)?;
                Array::described(array)?
            }
            Err(_) => describe(value)?,
        };
        let Layout { dtype, shape, .. } = &foreign.layout;
        match &self.parts.array {
            Some((own, sizes)) if own != dtype || sizes != shape => {
                return Err(Failure::from(Error::invalid(format!(
                    "the channel is for arrays of shape {} and dtype {own}, and this one has shape \
                     {} and dtype {dtype}",
                    shape_text(sizes),
                    shape_text(shape),
                )))
                .into());
            }
            Some(_) => {}
            None if is_bytes => {
                let len = foreign.layout.elements() * dtype.bytes();
                slot.set_len(len).map_err(Failure::from)?;
            }
            None => {
                let layout = layout_of(dtype, shape)?;
                slot.set_array(layout).map_err(Failure::from)?;
            }
        }
        self.copy(py, slot, &foreign)
    }

    fn copy(&self, py: Python<'_>, slot: &mut channel::Slot, foreign: &Foreign) -> PyResult<()> {
        let is_on_host = foreign.place == Place::Host;
        match &self.queue {
            None if is_on_host => {
                let (to, len) = (slot.as_ptr(), slot.len());
                // SAFETY: this thread has the reserved slot, which has room for `len` bytes.
                unsafe { copied_to_slot(py, foreign, to, len) }
            }
            Some(_) if is_on_host => {
                let mut data = room_for(slot.len())?;
                // SAFETY: only this thread has the new buffer, which has room for all elements.
                unsafe { copied_to_slot(py, foreign, data.as_mut_ptr(), data.len())? };
                let written = py.detach(|| slot.write(0, &data));
                Ok(written.map_err(Failure::from)?)
            }
            Some(queue) => {
                let range = slot.range().map_err(Failure::from)?;
                submitted_to_slot(py, &queue.get().queue, foreign, &range)
            }
            None => Err(PyValueError::new_err(
                "this channel is in host memory: copy the array to the host first",
            )),
        }
    }

    fn send_by(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        user: Option<Data>,
        slices: &Slices,
    ) -> PyResult<Option<u64>> {
        let mut slot = self.reserve_slot(py, slices)?;
        self.fill(py, &mut slot, value)?;
        if let Some(user) = user {
            slot.set_user(&user).map_err(Failure::from)?;
        }
        Ok(self.publish(py, slot, slices)?.ok())
    }
}

fn timed_out(py: Python<'_>) -> PyErr {
    exception(py, &Error::TimedOut("waiting for room in a channel"))
}

#[pymethods]
impl Producer {
    /// Copies an array or bytes into a slot and publishes it. Returns the item's number.
    ///
    /// Waits for at most `timeout` seconds while the channel is full, and then raises
    /// `TimedOutError`. Other Python threads run meanwhile. Ctrl-C interrupts the wait. `user` are
    /// at most 64 bytes that the item carries in addition. Raises `InvalidArgumentError` for an
    /// array of another shape or type than the channel's, and for one that is larger than a slot.
    #[pyo3(signature = (value, *, user = None, timeout = None))]
    fn send(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        user: Option<Data>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let slices = Slices::new(interrupt::timeout(timeout)?);
        let number = self.send_by(py, value, user, &slices)?;
        number.ok_or_else(|| timed_out(py))
    }

    /// Sends an array or bytes as `send` does, or returns `None` if the channel is full.
    #[pyo3(signature = (value, *, user = None))]
    fn try_send(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        user: Option<Data>,
    ) -> PyResult<Option<u64>> {
        self.send_by(py, value, user, &Slices::new(Some(Duration::ZERO)))
    }

    /// Reserves a slot. The `with` statement publishes it at the end of its block, and waits for
    /// room for at most `timeout` seconds. After an exception in the block, it returns the slot
    /// without an item.
    ///
    /// This method does not wait for room. It waits only if queues still write all free slots, for
    /// at most `timeout` seconds. Raises `LimitReachedError` if the producer has its maximum number
    /// of reserved slots.
    #[pyo3(signature = (*, timeout = None))]
    fn reserve(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Slot> {
        let (py, own) = (slf.py(), slf.get());
        let limit = interrupt::timeout(timeout)?;
        let slot = own.reserve_slot(py, &Slices::new(limit))?;
        let (dtype, shape) = match &own.parts.array {
            Some((dtype, shape)) => (dtype.clone(), shape.clone()),
            None => (Dtype::BYTE, vec![slot.size()]),
        };
        let array = own.parts.array(slot.as_ptr(), dtype, shape, None, false)?;
        Ok(Slot {
            state: Mutex::new(Some(State {
                slot,
                array: Py::new(py, array)?,
            })),
            producer: slf.clone().unbind(),
            limit,
        })
    }

    /// The numbers of producers and of consumers that are alive.
    #[getter]
    fn members(&self) -> (usize, usize) {
        self.parts.channel.members()
    }

    /// Leaves the channel as soon as all its slots are published or returned.
    fn close(&self, py: Python<'_>) {
        self.turn.close(py);
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

    fn __repr__(&self) -> String {
        match self.turn.is_closed() {
            true => "<crosshandle.Producer, closed>".into(),
            false => "<crosshandle.Producer>".into(),
        }
    }
}

/// A reserved slot of a channel: a writable array in shared memory, from `Producer.reserve`.
///
/// Do not write to the slot after it was published or returned, for example with a NumPy array that
/// was made before: that would spoil another item.
///
/// >>> channel = crosshandle.Channel(slot_size=64)
/// >>> producer, consumer = channel.producer(), channel.consumer()
/// >>> with producer.reserve() as slot:
/// ...     slot.set_array((2, 4), "int16")
/// ...     slot.numpy()[:] = 5
/// ...     slot.user = b"fives"
/// >>> item = consumer.receive(timeout=5)
/// >>> item.shape, item.dtype, item.user
/// ((2, 4), 'int16', b'fives')
/// >>> slot = producer.reserve()
/// >>> slot[:5] = list(b"hello")
/// >>> slot.nbytes = 5
/// >>> slot.publish(timeout=5)
/// 1
/// >>> bytes(consumer.receive(timeout=5))
/// b'hello'
/// >>> producer.reserve().release()
/// >>> matrix = producer.reserve().jax()           # needs jax
/// >>> tensor = producer.reserve().torch()         # needs torch
/// >>> on_a_gpu = producer.reserve().cupy()        # needs gpu, cupy, by_hand
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Slot {
    /// `None` after the slot was published or returned.
    state: Mutex<Option<State>>,
    producer: Py<Producer>,
    /// How long the end of a `with` block waits for room.
    limit: Option<Duration>,
}

struct State {
    slot: channel::Slot,
    array: Py<Array>,
}

fn not_reserved() -> PyErr {
    PyValueError::new_err("this slot was published or returned")
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn array_of<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Array>> {
        let state = self.state();
        let state = state.as_ref().ok_or_else(not_reserved)?;
        Ok(state.array.bind(py).clone())
    }

    fn publish_by(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<u64> {
        let state = self.state().take().ok_or_else(not_reserved)?;
        let producer = self.producer.get();
        match producer.publish(py, state.slot, &Slices::new(limit))? {
            Ok(number) => Ok(number),
            Err(slot) => {
                let array = state.array;
                *self.state() = Some(State { slot, array });
                Err(timed_out(py))
            }
        }
    }
}

array_class! { Slot {
    /// Writes elements, as in `slot[:] = 1`.
    fn __setitem__(
        &self,
        py: Python<'_>,
        index: Bound<'_, PyAny>,
        value: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.array_of(py)?.set_item(index, value)
    }

    /// Makes the item an array of another shape and type, which must fit into the slot. The
    /// channel must have been created with a `slot_size`.
    fn set_array(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (shape, dtype) = (Layout::shape_of(shape)?, Dtype::of(dtype)?);
        let layout = layout_of(&dtype, &shape)?;
        let mut state = self.state();
        let state = state.as_mut().ok_or_else(not_reserved)?;
        state.slot.set_array(layout).map_err(Failure::from)?;
        let parts = &self.producer.get().parts;
        let array = parts.array(state.slot.as_ptr(), dtype, shape, None, false)?;
        state.array = Py::new(py, array)?;
        Ok(())
    }

    /// The size of the item in bytes (default: the whole slot). A channel that was created with a
    /// `slot_size` permits smaller items.
    #[getter]
    fn get_nbytes(&self) -> PyResult<usize> {
        Ok(self.state().as_ref().ok_or_else(not_reserved)?.slot.len())
    }

    #[setter]
    fn set_nbytes(&self, nbytes: usize) -> PyResult<()> {
        let mut state = self.state();
        let state = state.as_mut().ok_or_else(not_reserved)?;
        Ok(state.slot.set_len(nbytes).map_err(Failure::from)?)
    }

    /// Bytes that the item carries in addition, at most 64. This attribute can only be set.
    #[setter]
    fn set_user(&self, user: Data) -> PyResult<()> {
        let mut state = self.state();
        let state = state.as_mut().ok_or_else(not_reserved)?;
        Ok(state.slot.set_user(&user).map_err(Failure::from)?)
    }

    /// Publishes the item, and returns its number. Waits for at most `timeout` seconds while the
    /// channel is full. After that it raises `TimedOutError`, and the slot is still reserved.
    #[pyo3(signature = (timeout = None))]
    fn publish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.publish_by(py, interrupt::timeout(timeout)?)
    }

    /// Returns the slot without an item.
    fn release(&self) {
        let state = self.state().take();
        drop(state);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let is_reserved = self.state().is_some();
        let published = match class.is_none() && is_reserved {
            true => self.publish_by(py, self.limit).map(drop),
            false => Ok(()),
        };
        self.release();
        published
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.array_of(py).and_then(|array| Ok(array.repr()?.to_string())) {
            Ok(array) => format!("<crosshandle.Slot of {array}>"),
            Err(_) => "<crosshandle.Slot, published or returned>".into(),
        }
    }
} }
