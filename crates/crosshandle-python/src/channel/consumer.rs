//! The Python classes `Consumer` and `Item`.

use super::turn::Turn;
use super::{HeldItem, Parts, type_of};
use crate::array::{Array, Dtype};
use crate::error::{Failure, exception};
use crate::interrupt::{self, SLICE, Slices};
use crate::queue::Queue;
use crosshandle::Error;
use crosshandle::channel::{self, ChannelFault};
use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A consumer of a channel, from `Channel.consumer`.
///
/// A `for` loop over a consumer yields its items, and ends when all producers have left. It raises
/// `PeerDiedError` if one of them died. `async for` does the same in asyncio and trio. Dropping or
/// closing a consumer makes it leave the channel. Its items stay valid. Any thread may use a
/// consumer, and only one thread at a time waits for an item.
///
/// >>> channel = crosshandle.Channel(slot_size=64)
/// >>> producer, consumer = channel.producer(), channel.consumer()
/// >>> for text in (b"one", b"two", b"three", b"four"):
/// ...     number = producer.send(text)
/// >>> bytes(consumer.receive(timeout=5)), bytes(consumer.try_receive())
/// (b'one', b'two')
/// >>> bytes(consumer.receive_latest(timeout=5))
/// b'four'
/// >>> consumer.lost, consumer.members
/// (0, (1, 1))
/// >>> async def main():
/// ...     producer.send(b"five")
/// ...     return bytes(await consumer.received())
/// >>> asyncio.run(main())
/// b'five'
/// >>> consumer.fileno() > 0
/// True
/// >>> consumer.close()
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Consumer {
    turn: Turn<channel::Consumer>,
    parts: Arc<Parts>,
    queue: Option<Py<Queue>>,
    read_only: bool,
}

impl Consumer {
    pub(super) fn new(
        consumer: channel::Consumer,
        parts: Arc<Parts>,
        queue: Option<Py<Queue>>,
        read_only: bool,
    ) -> Self {
        Self {
            turn: Turn::new(consumer, "consumer"),
            parts,
            queue,
            read_only,
        }
    }

    /// Wraps a received item.
    fn item(&self, py: Python<'_>, item: channel::Item) -> PyResult<Item> {
        let (number, time) = (item.number(), item.time());
        let user = item.user().map_err(Failure::from)?.to_vec();
        let (dtype, shape) = match item.array() {
            None => (Dtype::BYTE, vec![item.len()]),
            Some(array) => type_of(array)?,
        };
        let address = item.as_ptr();
        let held = HeldItem {
            item: Some(item),
            queue: self.queue.as_ref().map(|queue| queue.clone_ref(py)),
        };
        let array = self
            .parts
            .array(address, dtype, shape, Some(held), self.read_only)?;
        Ok(Item {
            array: Mutex::new(Some(Py::new(py, array)?)),
            number,
            time,
            user,
        })
    }

    /// Calls `receive` with short timeouts until it succeeds. Returns `None` after the timeout.
    fn receive_by(
        &self,
        py: Python<'_>,
        slices: &Slices,
        receive: impl Fn(&mut channel::Consumer, Duration) -> crosshandle::Result<channel::Item> + Sync,
    ) -> PyResult<Option<channel::Item>> {
        crosshandle::adapter_support::check_birth(&self.parts.context).map_err(Failure::from)?;
        let mut consumer = self.turn.take(py, slices)?;
        loop {
            // Another thread may close this object meanwhile.
            if self.turn.is_closed() {
                return Err(PyValueError::new_err("this consumer was closed"));
            }
            let (slice, is_last) = slices.next(SLICE);
            let consumer = &mut *consumer;
            match py.detach(|| receive(consumer, slice)) {
                Ok(item) => return Ok(Some(item)),
                Err(Error::TimedOut(_)) if is_last => return Ok(None),
                Err(Error::TimedOut(_)) => py.check_signals()?,
                Err(error) => return Err(Failure::from(error).into()),
            }
        }
    }

    fn next_by(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Item> {
        let slices = Slices::new(interrupt::timeout(timeout)?);
        let queue = self.queue.as_ref();
        let item = self.receive_by(py, &slices, |consumer, slice| match queue {
            None => consumer.receive_timeout(slice),
            Some(queue) => consumer.receive_on(&queue.get().queue, slice),
        })?;
        match item {
            Some(item) => self.item(py, item),
            None => Err(timed_out(py)),
        }
    }
}

fn timed_out(py: Python<'_>) -> PyErr {
    exception(py, &Error::TimedOut("waiting for an item of a channel"))
}

#[pymethods]
impl Consumer {
    /// Receives the next item, and waits for it for at most `timeout` seconds.
    ///
    /// Other Python threads run meanwhile. Ctrl-C interrupts the wait. Raises `TimedOutError` after
    /// the timeout, `ChannelClosedError` if all producers have left and no item is left,
    /// `PeerDiedError` if one of them died, and `LimitReachedError` if the consumer has its maximum
    /// number of items.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Item> {
        self.next_by(py, timeout)
    }

    /// Receives the next item, or returns `None` if no item is waiting. Raises the same exceptions
    /// as `receive`.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        let slices = Slices::new(Some(Duration::ZERO));
        crosshandle::adapter_support::check_birth(&self.parts.context).map_err(Failure::from)?;
        let mut consumer = self.turn.take(py, &slices)?;
        // This call also makes the descriptor unreadable if there is no item.
        let found = consumer.try_receive().map_err(Failure::from)?;
        drop(consumer);
        found.map(|item| self.item(py, item)).transpose()
    }

    /// Receives the newest waiting item, and drops the older ones. Waits for at most `timeout`
    /// seconds if no item is waiting. Raises the same exceptions as `receive`.
    #[pyo3(signature = (timeout = None))]
    fn receive_latest(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Item> {
        let slices = Slices::new(interrupt::timeout(timeout)?);
        let item = self.receive_by(py, &slices, channel::Consumer::receive_latest)?;
        match item {
            Some(item) => self.item(py, item),
            None => Err(timed_out(py)),
        }
    }

    /// Receives the next item in a task of asyncio or trio: `await consumer.received()`. Raises the
    /// same exceptions as `receive`. A cancelled task loses no item. Only one task at a time waits
    /// for a consumer.
    fn received<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let awaiting = slf.py().import("crosshandle._awaiting")?;
        awaiting.call_method1("received", (slf,))
    }

    /// Returns a file descriptor for event loops, which is readable when `try_receive` may return
    /// an item or raise an exception. Call `try_receive` until it returns `None`, which makes the
    /// descriptor unreadable again. Do not read from the descriptor.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let slices = Slices::new(Some(Duration::ZERO));
        let mut consumer = self.turn.take(py, &slices)?;
        let descriptor = consumer.descriptor().map_err(Failure::from)?;
        Ok(descriptor.as_raw_fd())
    }

    /// The number of items of a broadcast that were replaced before this consumer received them.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        let slices = Slices::new(Some(Duration::ZERO));
        Ok(self.turn.take(py, &slices)?.lost())
    }

    /// The numbers of producers and of consumers that are alive.
    #[getter]
    fn members(&self) -> (usize, usize) {
        self.parts.channel.members()
    }

    /// Leaves the channel. Received items stay valid.
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

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Item> {
        self.next_by(py, None).map_err(|error| {
            let closed = exception(py, &Error::Channel(ChannelFault::Closed));
            match error.is_instance(py, &closed.get_type(py)) {
                true => PyStopIteration::new_err(()),
                false => error,
            }
        })
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let awaiting = slf.py().import("crosshandle._awaiting")?;
        awaiting.call_method1("next_received", (slf,))
    }

    fn __repr__(&self) -> String {
        match self.turn.is_closed() {
            true => "<crosshandle.Consumer, closed>".into(),
            false => "<crosshandle.Consumer>".into(),
        }
    }
}

/// A received item: a read-only array in a slot of the channel.
///
/// NumPy, JAX, CuPy and torch read the slot in place. The slot is free for other items when the
/// item and all arrays that were made from it are dropped. `release` and the end of a `with` block
/// drop only the item itself. A consumer has at most `held` slots at a time.
///
/// >>> channel = crosshandle.Channel(slot_size=64)
/// >>> number = channel.producer().send(b"hello", user=b"camera 1")
/// >>> item = channel.consumer().receive(timeout=5)
/// >>> bytes(item), item.user, item.number, item.nbytes, item.time > 0
/// (b'hello', b'camera 1', 0, 5, True)
/// >>> array = item.numpy()
/// >>> same = item.jax()                   # needs jax
/// >>> tensor = item.torch(copy=True)      # needs torch
/// >>> on_a_gpu = item.cupy()              # needs gpu, cupy, by_hand
/// >>> item.release()
#[pyclass(frozen, module = "crosshandle", weakref)]
pub(crate) struct Item {
    array: Mutex<Option<Py<Array>>>,
    number: u64,
    time: u64,
    user: Vec<u8>,
}

impl Item {
    fn array_of<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Array>> {
        let array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        match &*array {
            Some(array) => Ok(array.bind(py).clone()),
            None => Err(PyValueError::new_err("this item was released")),
        }
    }
}

array_class! { Item {
    /// The item's number. The first item of a channel has the number 0.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The time at which the item was published, in nanoseconds of `time.monotonic_ns()`.
    #[getter]
    fn time(&self) -> u64 {
        self.time
    }

    /// The bytes that the producer has added to the item.
    #[getter]
    fn user<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.user)
    }

    /// The size of the item in bytes.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.array_of(py)?.getattr("nbytes")?.extract()
    }

    /// Drops the item. Its slot is free when no array uses it any more.
    fn release(&self) {
        let mut array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        let array = array.take();
        drop(array);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.release();
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.array_of(py).and_then(|array| Ok(array.repr()?.to_string())) {
            Ok(array) => format!("<crosshandle.Item {} of {array}>", self.number),
            Err(_) => format!("<crosshandle.Item {}, released>", self.number),
        }
    }
} }
