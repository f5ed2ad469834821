//! The types of elements.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::fmt;

/// The type of an array's elements, in this machine's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dtype {
    pub(crate) kind: Kind,
    /// The bits of an element: a multiple of 8.
    pub(crate) bits: u8,
}

/// The kind of an element. The numbers are those of DLPack.
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

/// A type: its name, kind and bits, NumPy's letter for it and the buffer protocol's, if they have it.
type Entry = (&'static str, Kind, u8, Option<char>, Option<&'static str>);

const TYPES: [Entry; 24] = [
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
    // The last is what bytes are by default.
    ("byte", Kind::Uint, 8, Some('u'), Some("B")),
];

impl Dtype {
    /// Bytes.
    pub(crate) const BYTE: Self = Self {
        kind: Kind::Uint,
        bits: 8,
    };

    /// Returns the type with a DLPack code and a number of bits, if there is one.
    pub(crate) fn from_code(code: u8, bits: u8) -> Option<Self> {
        let found = TYPES
            .iter()
            .find(|(_, kind, size, ..)| (*kind as u8, *size) == (code, bits))?;
        Some(Self {
            kind: found.1,
            bits: found.2,
        })
    }

    /// Reads a name, or whatever has a NumPy dtype's `str` or `name`.
    pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text = match value.extract::<String>() {
            Ok(text) => text,
            // `numpy.dtype`, and NumPy's scalar classes by way of it; torch's dtypes by their text.
            Err(_) => match value
                .getattr("str")
                .and_then(|text| text.extract::<String>())
            {
                Ok(text) => text,
                Err(_) => match value.getattr("__name__").and_then(|name| name.extract()) {
                    Ok(name) => name,
                    Err(_) => value.str()?.to_string(),
                },
            },
        };
        let text = text.strip_prefix("torch.").unwrap_or(&text);
        let text = if text == "float" {
            "float64"
        } else if text == "int" {
            "int64"
        } else {
            text
        };
        let found = TYPES.iter().find(|(name, _, bits, letter, _)| {
            let typestr = letter.map(|letter| typestr(letter, *bits));
            *name == text || typestr.as_deref() == Some(text)
        });
        let (_, kind, bits, ..) = found.ok_or_else(|| {
            let names = Vec::from_iter(TYPES.iter().map(|(name, ..)| *name)).join(", ");
            PyTypeError::new_err(format!("no dtype is called {text:?}: there are {names}"))
        })?;
        Ok(Self {
            kind: *kind,
            bits: *bits,
        })
    }

    /// Reads the buffer protocol's name of a type with so many bytes.
    pub(crate) fn from_format(format: &str, bytes: usize) -> Option<Self> {
        let native = if cfg!(target_endian = "little") {
            '<'
        } else {
            '>'
        };
        let format = format
            .strip_prefix(['@', '=', '|', native])
            .unwrap_or(format);
        // `long` has the size of one of the others.
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
        (usize::from(bits) / 8 == bytes).then_some(Self { kind, bits })
    }

    pub(crate) fn bytes(self) -> usize {
        usize::from(self.bits) / 8
    }

    /// Returns the unsigned type with as many bits, for types of at most 64.
    pub(crate) fn unsigned(self) -> Self {
        Self {
            kind: Kind::Uint,
            bits: self.bits.min(64),
        }
    }

    /// Returns whether it is one of the floating-point types of 8 bits, which few libraries know.
    pub(crate) fn is_float8(self) -> bool {
        self.kind as u8 > Kind::Bool as u8
    }

    /// Returns NumPy's name; `None` if NumPy has no such type.
    pub(crate) fn typestr(self) -> Option<String> {
        self.entry().3.map(|letter| typestr(letter, self.bits))
    }

    /// Returns the buffer protocol's name; `None` if it has none.
    pub(crate) fn format(self) -> Option<&'static str> {
        self.entry().4
    }

    fn entry(self) -> &'static Entry {
        let is_it = |(_, kind, bits, ..): &&Entry| (*kind, *bits) == (self.kind, self.bits);
        TYPES.iter().find(is_it).expect("made from the table")
    }
}

fn typestr(letter: char, bits: u8) -> String {
    let order = match bits {
        8 => '|',
        _ if cfg!(target_endian = "little") => '<',
        _ => '>',
    };
    format!("{order}{letter}{}", bits / 8)
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().0)
    }
}
