//! Element types: their names, codes and conversions.

use crate::foreign::swapped;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::fmt;
use std::sync::Arc;

/// The type of an array's elements, in this machine's byte order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Dtype {
    /// A type that DLPack can express.
    Plain(Plain),
    /// A NumPy type that DLPack cannot express: a date, a string of fixed size, or a record.
    Described(Arc<Described>),
}

/// An element type in DLPack's encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    pub(crate) kind: Kind,
    /// The size of an element in bits, which is a multiple of 8.
    pub(crate) bits: u8,
}

/// An element type that is described by text. `crosshandle/_dtypes.py` defines the grammar of the
/// text, and checks the text before it creates a NumPy dtype.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Described {
    pub(crate) text: String,
    /// The size of an element in bytes, which is not 0.
    pub(crate) bytes: u32,
}

/// The kind of an element type. The values are DLPack's type codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Int = 0,
    Uint = 1,
    Float = 2,
    Bfloat = 4,
    Complex = 5,
    Bool = 6,
    Float8E3m4 = 7,
    Float8E4m3 = 8,
    Float8E4m3b11fnuz = 9,
    Float8E4m3fn = 10,
    Float8E4m3fnuz = 11,
    Float8E5m2 = 12,
    Float8E5m2fnuz = 13,
    Float8E8m0fnu = 14,
}

/// A row of [`TYPES`]: the type's name, its kind, its size in bits, NumPy's letter for it, and the
/// buffer protocol's format for it.
type Entry = (&'static str, Kind, u8, Option<char>, Option<&'static str>);

const TYPES: [Entry; 23] = [
    ("bool", Kind::Bool, 8, Some('b'), Some("?")),
    ("int8", Kind::Int, 8, Some('i'), Some("b")),
    ("int16", Kind::Int, 16, Some('i'), Some("h")),
    ("int32", Kind::Int, 32, Some('i'), Some("i")),
    ("int64", Kind::Int, 64, Some('i'), Some("q")),
    ("uint8", Kind::Uint, 8, Some('u'), Some("B")),
    ("uint16", Kind::Uint, 16, Some('u'), Some("H")),
    ("uint32", Kind::Uint, 32, Some('u'), Some("I")),
    ("uint64", Kind::Uint, 64, Some('u'), Some("Q")),
    ("float16", Kind::Float, 16, Some('f'), Some("e")),
    ("float32", Kind::Float, 32, Some('f'), Some("f")),
    ("float64", Kind::Float, 64, Some('f'), Some("d")),
    ("bfloat16", Kind::Bfloat, 16, None, None),
    ("complex64", Kind::Complex, 64, Some('c'), Some("Zf")),
    ("complex128", Kind::Complex, 128, Some('c'), Some("Zd")),
    ("float8_e3m4", Kind::Float8E3m4, 8, None, None),
    ("float8_e4m3", Kind::Float8E4m3, 8, None, None),
    ("float8_e4m3b11fnuz", Kind::Float8E4m3b11fnuz, 8, None, None),
    ("float8_e4m3fn", Kind::Float8E4m3fn, 8, None, None),
    ("float8_e4m3fnuz", Kind::Float8E4m3fnuz, 8, None, None),
    ("float8_e5m2", Kind::Float8E5m2, 8, None, None),
    ("float8_e5m2fnuz", Kind::Float8E5m2fnuz, 8, None, None),
    ("float8_e8m0fnu", Kind::Float8E8m0fnu, 8, None, None),
];

/// Alternative names of types: NumPy's C names and one-letter codes, Python's class names, and
/// torch's names.
const ALIASES: [(&str, &str); 47] = [
    ("bool_", "bool"),
    ("?", "bool"),
    ("b", "int8"),
    ("byte", "int8"),
    ("h", "int16"),
    ("short", "int16"),
    ("i", "int32"),
    ("intc", "int32"),
    ("int", "int64"),
    ("int_", "int64"),
    ("intp", "int64"),
    ("long", "int64"),
    ("longlong", "int64"),
    ("l", "int64"),
    ("q", "int64"),
    ("p", "int64"),
    ("n", "int64"),
    ("B", "uint8"),
    ("ubyte", "uint8"),
    ("H", "uint16"),
    ("ushort", "uint16"),
    ("I", "uint32"),
    ("uintc", "uint32"),
    ("uint", "uint64"),
    ("uintp", "uint64"),
    ("ulong", "uint64"),
    ("ulonglong", "uint64"),
    ("L", "uint64"),
    ("Q", "uint64"),
    ("P", "uint64"),
    ("N", "uint64"),
    ("e", "float16"),
    ("half", "float16"),
    ("f", "float32"),
    ("single", "float32"),
    ("d", "float64"),
    ("double", "float64"),
    ("float", "float64"),
    ("float_", "float64"),
    ("F", "complex64"),
    ("csingle", "complex64"),
    ("cfloat", "complex128"),
    ("D", "complex128"),
    ("cdouble", "complex128"),
    ("complex", "complex128"),
    ("complex_", "complex128"),
    ("bf16", "bfloat16"),
];

impl Dtype {
    /// `uint8`, the type of raw bytes.
    pub(crate) const BYTE: Self = Self::plain(Kind::Uint, 8);
    /// `float64`, the default element type of a new array.
    pub(crate) const DOUBLE: Self = Self::plain(Kind::Float, 64);

    const fn plain(kind: Kind, bits: u8) -> Self {
        Self::Plain(Plain { kind, bits })
    }

    /// Returns the type with a DLPack type code and a size in bits, or `None` if this library does
    /// not support it.
    pub(crate) fn from_code(code: u8, bits: u8) -> Option<Self> {
        let found = TYPES
            .iter()
            .find(|(_, kind, size, ..)| (*kind as u8, *size) == (code, bits))?;
        Some(Self::plain(found.1, found.2))
    }

    /// Creates a type from its description. `bytes` is the size of an element in bytes and must not
    /// be 0.
    pub(crate) fn described(text: String, bytes: u32) -> Self {
        Self::Described(Arc::new(Described { text, bytes }))
    }

    /// Converts an element type that a program passes: a name, a code, a NumPy, torch or Arrow
    /// type, or a scalar class. Fails with `TypeError` if the type is unknown.
    pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.extract::<String>() {
            return Self::named(value.py(), &text, None);
        }
        // A NumPy dtype.
        let text = value.getattr_opt("str")?;
        if let Some(text) = text.and_then(|text| text.extract::<String>().ok()) {
            return Self::named(value.py(), &text, Some(value));
        }
        // A Python class, or a scalar class of NumPy or JAX.
        let name = value.getattr_opt("__name__")?;
        if let Some(name) = name.and_then(|name| name.extract::<String>().ok()) {
            return Self::named(value.py(), &name, None);
        }
        // A torch dtype.
        let text = value.str()?.to_string();
        if let Some(name) = text.strip_prefix("torch.") {
            return Self::named(value.py(), name, None);
        }
        // An Arrow type.
        if let Some(convert) = value.getattr_opt("to_pandas_dtype")? {
            return Self::of(&convert.call0()?);
        }
        Err(unknown(&text))
    }

    /// Converts the name or the code of a type. If `text` came from the `str` attribute of a NumPy
    /// dtype, `dtype` is that dtype.
    fn named(py: Python<'_>, text: &str, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        if let Some(found) = Self::lookup(text) {
            return Ok(found);
        }
        if let Some(rest) = text.strip_prefix(SWAPPED)
            && Self::lookup(rest).is_some()
        {
            return Err(swapped(text));
        }
        // For a type from the package ml_dtypes, the NumPy dtype's `str` only says "raw bytes", so
        // use its name.
        if let Some(dtype) = dtype {
            let name: String = dtype.getattr("name")?.extract()?;
            if let Some(found) = Self::lookup(&name) {
                return Ok(found);
            }
        }
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let describe = DESCRIBE.import(py, "crosshandle._dtypes", "describe")?;
        let described = match dtype {
            Some(dtype) => describe.call1((dtype,))?,
            None => describe.call1((text,))?,
        };
        match described.extract::<Option<(String, u32)>>()? {
            Some((text, bytes)) if bytes > 0 => {
                Ok(Self::lookup(&text).unwrap_or_else(|| Self::described(text, bytes)))
            }
            _ => Err(unknown(text)),
        }
    }

    /// Finds a plain type by its name, an alias, or NumPy's code.
    pub(crate) fn lookup(text: &str) -> Option<Self> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == text);
        let text = alias.map_or(text, |(_, name)| name);
        let code = text.strip_prefix(['=', '|', NATIVE]).unwrap_or(text);
        let is_it = |(name, _, bits, letter, _): &&Entry| {
            let is_code = |letter: char| {
                let size = code.strip_prefix(letter);
                size.is_some_and(|size| {
                    size.parse() == Ok(bits / 8) && !size.starts_with(['0', '+'])
                })
            };
            *name == text || letter.is_some_and(is_code)
        };
        let found = TYPES.iter().find(is_it)?;
        Some(Self::plain(found.1, found.2))
    }

    /// Converts a format from the buffer protocol. `bytes` is the size of an element in bytes.
    /// Returns `None` if the format is not a single number of that size.
    pub(crate) fn from_format(format: &str, bytes: usize) -> Option<Self> {
        let format = format
            .strip_prefix(['@', '=', '|', NATIVE])
            .unwrap_or(format);
        // `long` has 4 or 8 bytes, depending on the platform.
        let format = match (format, bytes) {
            ("l", 8) => "q",
            ("l", 4) => "i",
            ("L", 8) => "Q",
            ("L", 4) => "I",
            ("c", 1) => "B",
            (format, _) => format,
        };
        let found = TYPES.iter().find(|(.., own)| *own == Some(format))?;
        let (kind, bits) = (found.1, found.2);
        (usize::from(bits) / 8 == bytes).then_some(Self::plain(kind, bits))
    }

    /// Returns the size of an element in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(plain) => usize::from(plain.bits) / 8,
            Self::Described(described) => described.bytes as usize,
        }
    }

    /// Returns the required alignment of elements in bytes.
    pub(crate) fn align(&self) -> usize {
        match self {
            Self::Plain(_) => self.bytes().min(8),
            // Only NumPy reads elements of these types, and it accepts any address.
            Self::Described(_) => 1,
        }
    }

    /// Returns a type with the same element size that every library supports. It is used to pass an
    /// array to a library that lacks the real type.
    pub(crate) fn raw(&self) -> Self {
        match self {
            Self::Plain(plain) => Self::plain(Kind::Uint, plain.bits.min(64)),
            Self::Described(described) => {
                Self::described(format!("|V{}", described.bytes), described.bytes)
            }
        }
    }

    /// Returns the type in DLPack's encoding, or `None` if DLPack cannot express it.
    pub(crate) fn numbered(&self) -> Option<Plain> {
        match self {
            Self::Plain(plain) => Some(*plain),
            Self::Described(_) => None,
        }
    }

    /// Returns whether this is an 8-bit floating-point type, which few libraries support.
    pub(crate) fn is_float8(&self) -> bool {
        matches!(self, Self::Plain(plain) if plain.kind as u8 > Kind::Bool as u8)
    }

    /// Returns NumPy's code for the type, such as `<f4`. Returns `None` for a record, and for a
    /// type that NumPy itself lacks.
    pub(crate) fn typestr(&self) -> Option<String> {
        match self {
            Self::Plain(plain) => plain.entry().3.map(|letter| typestr(letter, plain.bits)),
            Self::Described(described) if described.text.starts_with('{') => None,
            Self::Described(described) => Some(described.text.clone()),
        }
    }

    /// Returns the buffer protocol's format for the type, or `None` if there is none.
    pub(crate) fn format(&self) -> Option<&'static str> {
        self.numbered()?.entry().4
    }

    /// Returns the NumPy dtype for the type. Some dtypes require the package ml_dtypes.
    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static DTYPE_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DTYPE_NAMED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match self {
            Self::Plain(plain) => {
                let named = DTYPE_NAMED.import(py, "crosshandle._dtypes", "dtype_named")?;
                named.call1((plain.entry().0,))
            }
            Self::Described(described) => {
                let dtype_of = DTYPE_OF.import(py, "crosshandle._dtypes", "dtype_of")?;
                dtype_of.call1((&described.text, described.bytes))
            }
        }
    }
}

impl Plain {
    fn entry(self) -> &'static Entry {
        let is_it = |(_, kind, bits, ..): &&Entry| (*kind, *bits) == (self.kind, self.bits);
        TYPES.iter().find(is_it).expect("made from the table")
    }
}

/// Returns the name of an element type, and the size of an element in bytes. `value` is any form of
/// type that NumPy or torch accepts.
#[pyfunction]
pub(crate) fn dtype_of(value: &Bound<'_, PyAny>) -> PyResult<(String, usize)> {
    let dtype = Dtype::of(value)?;
    Ok((dtype.to_string(), dtype.bytes()))
}

/// Returns the NumPy dtype for an element type. `value` is any form of type that NumPy or torch
/// accepts.
#[pyfunction]
pub(crate) fn numpy_dtype<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Dtype::of(value)?.numpy(value.py())
}

/// The character that NumPy's codes use for this machine's byte order. [`SWAPPED`] is the character
/// for the opposite order.
const NATIVE: char = if cfg!(target_endian = "little") {
    '<'
} else {
    '>'
};
const SWAPPED: char = if cfg!(target_endian = "little") {
    '>'
} else {
    '<'
};

fn unknown(text: &str) -> PyErr {
    let names = Vec::from_iter(TYPES.iter().map(|(name, ..)| *name)).join(", ");
    PyTypeError::new_err(format!(
        "no dtype is called {text:?}: there are {names}, and NumPy's dates, records and strings of fixed size"
    ))
}

fn typestr(letter: char, bits: u8) -> String {
    let order = if bits == 8 { '|' } else { NATIVE };
    format!("{order}{letter}{}", bits / 8)
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(plain) => f.write_str(plain.entry().0),
            Self::Described(described) => f.write_str(&described.text),
        }
    }
}
