//! Access to named models, which a holder process keeps in memory.
//!
//! Programs use this module through `python/crosshandle/store.py`.

mod error;
mod model;
mod updater;

pub(crate) use model::StoreModel;
pub(crate) use updater::StoreUpdater;

use crate::array::arguments::{Items, Sizes};
use crate::foreign::{Bytes, Foreign};
use crate::interrupt::{self, Slices, released};
use crosshandle::holder::{ClaimOptions, HandedOver, HeldName, HoldOptions};
use crosshandle_store::{
    Error, Hash, LoadOptions, LoadTiming, NamedBytes, NamedRange, OpenOptions, Store,
};
use error::Result;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval at which a wait for the holder checks for operating system signals such as Ctrl-C.
/// After each interval, the wait sends a new request to the holder.
const SLICE: Duration = Duration::from_millis(500);

/// Interval at which a claim checks for operating system signals such as Ctrl-C. After each
/// interval, the claim sends a new request, for which the holder examines all processes. The
/// interval must be longer than this examination takes on a busy machine, or the claim never
/// succeeds.
const CLAIM_SLICE: Duration = Duration::from_secs(1);

/// A client for the holder, which keeps named models in memory.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct StoreClient(Store);

/// A tensor to publish: its name, its safetensors type, its shape, and the array that contains its
/// bytes.
type Tensor<'py> = (String, String, Sizes<u64>, Bound<'py, Foreign>);

/// The result of `load` and `publish`: the name's new version, the model's hash, whether the
/// holder's successor has the model too, and the number of bytes that a resumed load did not have
/// to read again.
///
/// The last element contains three durations in seconds: for allocating the memory, for allocating
/// staging buffers, and for filling the memory.
type Published = (u64, String, bool, u64, (f64, f64, f64));

fn published(held: HandedOver, hash: Hash, timing: LoadTiming, resumed: u64) -> Published {
    let seconds = [timing.allocation, timing.staging, timing.filling].map(|it| it.as_secs_f64());
    (
        held.version,
        hash.to_string(),
        held.is_safe,
        resumed,
        seconds.into(),
    )
}

#[pymethods]
impl StoreClient {
    #[new]
    #[pyo3(signature = (socket_dir = None, token = None))]
    fn new(socket_dir: Option<PathBuf>, token: Option<String>) -> Self {
        let mut store = Store::new();
        if let Some(directory) = socket_dir {
            store = store.socket_dir(directory);
        }
        if let Some(token) = token {
            store = store.token(token);
        }
        Self(store)
    }

    /// Opens the model that the holder keeps under `name`. `place` selects the addresses: `None`
    /// for any, `"sleepable"`, `"agreed"`, or an integer address. `timeout` is in seconds.
    /// `options` may contain `expected_hash`, `or_elsewhere` and `back_up`. Programs call
    /// `crosshandle.store.Store.open`, which documents them.
    #[pyo3(signature = (name, *, place, timeout, options))]
    fn open(
        &self,
        py: Python<'_>,
        name: &str,
        place: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        options: &Bound<'_, PyDict>,
    ) -> Result<StoreModel> {
        let given = options;
        let mut options = OpenOptions::new()
            .or_elsewhere(item::<bool>(given, "or_elsewhere")?.unwrap_or(false))
            .back_up(item::<bool>(given, "back_up")?.unwrap_or(false));
        if let Some(hash) = item::<String>(given, "expected_hash")? {
            options = options.expecting(hash_of(&hash)?);
        }
        options = match place {
            None => options,
            Some(place) => match place.extract::<usize>() {
                Ok(address) => options.at(address),
                Err(_) => match place.extract::<String>()?.as_str() {
                    "sleepable" => options.sleepable(),
                    "agreed" => options.agreed_address(),
                    other => {
                        return Err(PyValueError::new_err(format!(
                            "a place is \"sleepable\", \"agreed\" or an address, not {other:?}"
                        ))
                        .into());
                    }
                },
            },
        };
        let model = wait(py, Some(timeout), SLICE, |patience| {
            let options = options.clone().patience(patience);
            self.0.open_with(name, &options)
        })?;
        Ok(StoreModel::new(model))
    }

    /// Loads safetensors files into shared memory, and hands the memory over to the holder under
    /// `name`. Returns the fields of `crosshandle.store.Published`.
    #[pyo3(signature = (name, files, *, device, options, hold))]
    fn load(
        &self,
        py: Python<'_>,
        name: &str,
        files: Items<PathBuf>,
        device: &str,
        options: &Bound<'_, PyDict>,
        hold: &Bound<'_, PyDict>,
    ) -> Result<Published> {
        let files = files.0;
        let resumes = item::<bool>(options, "resume")? == Some(true);
        let (options, hold) = (load_options(options)?, hold_options(hold)?);
        Ok(released(py, None, || -> crosshandle_store::Result<_> {
            if resumes {
                let loaded = (self.0).load_resumably(device, &files, name, &options, hold)?;
                let (timing, resumed) = (loaded.timing, loaded.resumed_bytes);
                return Ok(published(loaded.handed_over, loaded.hash, timing, resumed));
            }
            let loaded = self.0.load(device, &files, &options)?;
            let handed_over = loaded.publish(name, hold)?;
            Ok(published(handed_over, loaded.hash(), loaded.timing(), 0))
        })?)
    }

    /// Copies tensors into shared memory on `device`, and hands the memory over to the holder under
    /// `name`. All tensors must be on the host, or all on `device`. Returns the same fields as
    /// `load`.
    #[pyo3(signature = (name, tensors, *, device, options, hold))]
    fn publish(
        &self,
        py: Python<'_>,
        name: &str,
        tensors: Items<Tensor<'_>>,
        device: &str,
        options: &Bound<'_, PyDict>,
        hold: &Bound<'_, PyDict>,
    ) -> Result<Published> {
        let tensors = tensors.0;
        let (options, hold) = (load_options(options)?, hold_options(hold)?);
        let (mut named, mut ranges) = (Vec::new(), Vec::new());
        for (name, dtype, shape, array) in &tensors {
            let (name, dtype, shape) = (name.clone(), dtype.clone(), shape.0.clone());
            // SAFETY: `tensors` keeps the arrays alive until this function returns. The
            // documentation of `Store.publish` tells the program not to write to them before that.
            match unsafe { array.get().bytes() } {
                Some(Bytes::Host(bytes)) => named.push(NamedBytes {
                    name,
                    dtype,
                    shape,
                    bytes,
                }),
                Some(Bytes::Device(range)) => ranges.push(NamedRange {
                    name,
                    dtype,
                    shape,
                    range,
                }),
                None => return Err(not_plain(&name).into()),
            }
        }
        if !named.is_empty() && !ranges.is_empty() {
            return Err(PyValueError::new_err(
                "some arrays are on the host and some on a device: copy all of them to the same device",
            )
            .into());
        }
        Ok(released(py, None, || -> crosshandle_store::Result<_> {
            let loaded = match ranges.is_empty() {
                true => self.0.load_tensors(device, named, &options)?,
                false => self.0.copy_tensors(device, ranges, &options)?,
            };
            let handed_over = loaded.publish(name, hold)?;
            Ok(published(handed_over, loaded.hash(), loaded.timing(), 0))
        })?)
    }

    /// Opens a model for updates of its tensors in place. With `claim`, this process becomes the
    /// only writer. With `force`, the holder does not check that the previous writer has ended.
    /// `timeout` is in seconds. After the timeout, raises an exception. Ctrl-C interrupts the wait.
    #[pyo3(signature = (name, *, claim, force, timeout))]
    fn updater(
        &self,
        py: Python<'_>,
        name: &str,
        claim: bool,
        force: bool,
        timeout: Option<f64>,
    ) -> Result<StoreUpdater> {
        if !claim {
            let timeout = interrupt::timeout(timeout)?.filter(|timeout| !timeout.is_zero());
            let updater = released(py, None, || match timeout {
                Some(timeout) => self.0.updater_timeout(name, timeout),
                None => self.0.updater(name),
            })?;
            return Ok(StoreUpdater::new(updater));
        }
        let begin = Instant::now();
        let options = ClaimOptions::new().force(force);
        let wanted = interrupt::timeout(timeout)?.unwrap_or(Duration::MAX);
        loop {
            let left = wanted.saturating_sub(begin.elapsed());
            let options = options.clone().wait(left.min(CLAIM_SLICE));
            let is_last = left <= CLAIM_SLICE;
            match released(py, None, || self.0.claim(name, &options)) {
                Err(error) if (error.has_writer() || error.is_timeout()) && !is_last => {
                    py.check_signals()?;
                }
                claimed => return Ok(StoreUpdater::new(claimed?)),
            }
        }
    }

    /// Drops the contexts that this client caches for later calls.
    fn forget_contexts(&self, py: Python<'_>) {
        py.detach(|| self.0.forget_contexts());
    }

    /// Returns a list with one dict for each name that the holder keeps.
    #[pyo3(signature = (timeout = None))]
    fn ls<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> Result<Bound<'py, PyList>> {
        let names = released(py, interrupt::timeout(timeout)?, || self.0.holder().list())?;
        let all = PyList::empty(py);
        for name in names {
            all.append(described(py, &name)?)?;
        }
        Ok(all)
    }

    /// Removes a name from the holder. Processes that have opened the model keep their memory.
    #[pyo3(signature = (name, timeout = None))]
    fn rm(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> Result<()> {
        let timeout = interrupt::timeout(timeout)?;
        Ok(released(py, timeout, || self.0.holder().remove(name))?)
    }

    /// Protects a name from being removed or replaced if `pinned` is true. Otherwise ends that
    /// protection.
    #[pyo3(signature = (name, pinned, timeout = None))]
    fn pin(&self, py: Python<'_>, name: &str, pinned: bool, timeout: Option<f64>) -> Result<()> {
        let timeout = interrupt::timeout(timeout)?;
        Ok(released(py, timeout, || self.0.holder().pin(name, pinned))?)
    }

    /// Waits until a name has a version later than `version`, and returns the later version. Raises
    /// an exception after `timeout` seconds. Ctrl-C interrupts the wait.
    fn await_version(
        &self,
        py: Python<'_>,
        name: &str,
        version: u64,
        timeout: Option<f64>,
    ) -> Result<u64> {
        let found = wait(py, timeout, SLICE, |slice| {
            Ok(self.0.holder().await_version(name, version, slice)?)
        })?;
        Ok(found.version)
    }
}

fn described<'py>(py: Python<'py>, name: &HeldName) -> PyResult<Bound<'py, PyDict>> {
    let own = PyDict::new(py);
    own.set_item("name", &name.name)?;
    own.set_item("version", name.version)?;
    own.set_item("label", &name.label)?;
    own.set_item("pinned", name.pinned)?;
    own.set_item("created", name.created_unix_s)?;
    own.set_item("has_tokens", name.has_tokens)?;
    own.set_item("recovered", name.recovered.map(|how| how.to_string()))?;
    let largest = name.parts.iter().max_by_key(|part| part.bytes);
    own.set_item("device", largest.map(|part| &part.device))?;
    own.set_item("nbytes", name.bytes())?;
    Ok(own)
}

fn hash_of(text: &str) -> PyResult<Hash> {
    Hash::from_hex(text).map_err(|error| {
        PyValueError::new_err(format!("a hash consists of 64 hexadecimal digits: {error}"))
    })
}

fn not_plain(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "the array {name} has gaps, or is on another device: make it contiguous, and copy it to the host"
    ))
}

/// Converts the options for a load, which `store.py` passes as a dict.
fn load_options(given: &Bound<'_, PyDict>) -> PyResult<LoadOptions> {
    let mut options = LoadOptions::new();
    if let Some(threads) = item::<usize>(given, "threads")? {
        options = options.threads(threads);
    }
    if let Some(is_direct) = item::<bool>(given, "direct")? {
        options = options.direct(is_direct);
    }
    if let Some(bytes) = item::<usize>(given, "staging_bytes")? {
        options = options.staging_bytes(bytes);
    }
    if let Some(bytes) = item::<usize>(given, "part_bytes")? {
        options = options.part_bytes(bytes);
    }
    if let Some(texts) = item::<BTreeMap<String, String>>(given, "metadata")? {
        options = options.metadata(texts);
    }
    if let Some(hash) = item::<String>(given, "expected_hash")? {
        options = options.expecting(hash_of(&hash)?);
    }
    if let Some(progress) = item::<Py<PyAny>>(given, "progress")? {
        options = options.progress(move |bytes, all| {
            Python::attach(|py| {
                if let Err(error) = progress.call1(py, (bytes, all)) {
                    error.write_unraisable(py, None);
                }
            });
        });
    }
    Ok(options)
}

/// Converts the options for a name, which `store.py` passes as a dict.
fn hold_options(given: &Bound<'_, PyDict>) -> PyResult<HoldOptions> {
    let mut options = HoldOptions::new();
    if let Some(replaces) = item::<bool>(given, "replace")? {
        options = options.replaces(replaces);
    }
    if let Some(token) = item::<String>(given, "read_token")? {
        options = options.read_token(token);
    }
    if let Some(token) = item::<String>(given, "write_token")? {
        options = options.write_token(token);
    }
    if let Some(token) = item::<String>(given, "admin_token")? {
        options = options.admin_token(token);
    }
    Ok(options)
}

/// Returns the value for `key`, or `None` if the key is missing or its value is Python's `None`.
fn item<'py, T>(given: &Bound<'py, PyDict>, key: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> PyErr: From<<T as FromPyObject<'a, 'py>>::Error>,
{
    match given.get_item(key)? {
        Some(value) if !value.is_none() => Ok(Some(value.extract().map_err(PyErr::from)?)),
        _ => Ok(None),
    }
}

/// Calls `attempt` repeatedly with a timeout of at most `slice`, without the interpreter's lock,
/// until it succeeds or fails. Returns a timeout error after `timeout` seconds, or the exception of
/// a Python signal handler.
fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    slice: Duration,
    attempt: impl Fn(Duration) -> crosshandle_store::Result<T> + Sync,
) -> Result<T> {
    let slices = Slices::new(interrupt::timeout(timeout)?);
    loop {
        let (next, is_last) = slices.next(slice);
        match released(py, None, || attempt(next)) {
            Err(error) if error.is_timeout() && !is_last => py.check_signals()?,
            result => return result.map_err(|error: Error| error.into()),
        }
    }
}
