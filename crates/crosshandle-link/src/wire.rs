//! A macro that declares messages. One declaration generates the type, the encoder and the decoder.
//! Numbers are little-endian, and there is no padding between fields.

use crosshandle::handle::{EVENT_HANDLE_SIZE, MEMORY_HANDLE_SIZE};

/// Declares an enumeration of messages. An encoded message consists of its kind as a number (1
/// byte) and its fields, in the order of the declaration. A field is encoded in the [`Format`] of
/// its type, unless `as` names another format.
macro_rules! messages {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident $(<$life:lifetime>)? {
            $(
                $(#[$kind_about:meta])*
                $kind:ident = $number:literal {
                    $(
                        $(#[$field_about:meta])*
                        $field:ident: $type:ty $(as $format:ty)?
                    ),* $(,)?
                },
            )*
        }
    ) => {
        $(#[$about])*
        $visible enum $name $(<$life>)? {
            $(
                $(#[$kind_about])*
                $kind {
                    $($(#[$field_about])* $field: $type,)*
                },
            )*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Appends the encoded message to `to`.
            fn write(&self, to: &mut Vec<u8>) {
                use $crate::wire::{Format, messages};
                match self {
                    $(
                        Self::$kind { $($field),* } => {
                            to.push($number);
                            $(<messages!(@format $type $(, $format)?)>::write($field, to);)*
                        }
                    )*
                }
            }

            /// Decodes a message. Fails unless it uses all bytes.
            fn read(bytes: &$($life)? [u8]) -> Result<Self, &'static str> {
                use $crate::wire::{Fields, Format, messages};
                let fields = &mut Fields(bytes);
                let message = match fields.next::<u8>()? {
                    $(
                        $number => Self::$kind {
                            $(
                                $field: <messages!(@format $type $(, $format)?)>::read(fields)?,
                            )*
                        },
                    )*
                    _ => return Err("a message is of no known kind"),
                };
                match fields.0 {
                    [] => Ok(message),
                    _ => Err("a message has more bytes than its fields"),
                }
            }
        }
    };
    (@format $type:ty) => { $type };
    (@format $type:ty, $format:ty) => { $format };
}
pub(crate) use messages;

/// The bytes of a message that have not been decoded yet.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// Decodes the next field, in the format of its type.
    pub(crate) fn next<T: Format<'a>>(&mut self) -> Result<T, &'static str> {
        T::read(self)
    }

    /// Takes the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (first, rest) = self
            .0
            .split_at_checked(len)
            .ok_or("a message has fewer bytes than its fields")?;
        self.0 = rest;
        Ok(first)
    }
}

/// A format in which values of type `T` are encoded.
pub(crate) trait Format<'a, T = Self>: Sized {
    /// Appends the encoded value to `to`.
    fn write(value: &T, to: &mut Vec<u8>);

    /// Decodes a value, and removes its bytes from `fields`.
    fn read(fields: &mut Fields<'a>) -> Result<T, &'static str>;
}

macro_rules! number_formats {
    ($($number:ty)*) => {
        $(
            impl<'a> Format<'a> for $number {
                fn write(value: &Self, to: &mut Vec<u8>) {
                    to.extend_from_slice(&value.to_le_bytes());
                }

                fn read(fields: &mut Fields<'a>) -> Result<Self, &'static str> {
                    fields.next().map(Self::from_le_bytes)
                }
            }
        )*
    };
}
number_formats!(u8 u16 u32 u64);

impl<'a> Format<'a> for bool {
    fn write(value: &Self, to: &mut Vec<u8>) {
        to.push((*value).into());
    }

    fn read(fields: &mut Fields<'a>) -> Result<Self, &'static str> {
        match fields.next::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }
}

impl<'a, const N: usize> Format<'a> for [u8; N] {
    fn write(value: &Self, to: &mut Vec<u8>) {
        to.extend_from_slice(value);
    }

    fn read(fields: &mut Fields<'a>) -> Result<Self, &'static str> {
        fields.next::<&[u8; N]>().copied()
    }
}

impl<'a, const N: usize> Format<'a> for &'a [u8; N] {
    fn write(value: &Self, to: &mut Vec<u8>) {
        to.extend_from_slice(*value);
    }

    fn read(fields: &mut Fields<'a>) -> Result<Self, &'static str> {
        let bytes = fields.take(N)?;
        Ok(bytes.try_into().expect("it has this length"))
    }
}

/// The format of a message's last field, which consists of all remaining bytes, at most `MAX`. A
/// text that is longer is truncated when it is encoded.
pub(crate) struct Rest<const MAX: usize>;

impl<'a, const MAX: usize> Format<'a, &'a [u8]> for Rest<MAX> {
    fn write(value: &&'a [u8], to: &mut Vec<u8>) {
        debug_assert!(value.len() <= MAX);
        to.extend_from_slice(value);
    }

    fn read(fields: &mut Fields<'a>) -> Result<&'a [u8], &'static str> {
        match fields.0.len() <= MAX {
            true => Ok(std::mem::take(&mut fields.0)),
            false => Err("a message has more bytes than its fields"),
        }
    }
}

/// The format of the bytes of a handle of any kind in a message's last field. Their number is that
/// of a handle of memory or of an event.
pub(crate) struct RestIsHandle;

impl<'a> Format<'a, &'a [u8]> for RestIsHandle {
    fn write(value: &&'a [u8], to: &mut Vec<u8>) {
        to.extend_from_slice(value);
    }

    fn read(fields: &mut Fields<'a>) -> Result<&'a [u8], &'static str> {
        match fields.0.len() {
            EVENT_HANDLE_SIZE | MEMORY_HANDLE_SIZE => Ok(std::mem::take(&mut fields.0)),
            _ => Err("a handle has another size"),
        }
    }
}

impl<'a, const MAX: usize> Format<'a, &'a str> for Rest<MAX> {
    fn write(value: &&'a str, to: &mut Vec<u8>) {
        to.extend_from_slice(&value.as_bytes()[..value.floor_char_boundary(MAX)]);
    }

    fn read(fields: &mut Fields<'a>) -> Result<&'a str, &'static str> {
        let bytes = <Self as Format<&[u8]>>::read(fields)?;
        std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")
    }
}

impl<'a, const MAX: usize> Format<'a, String> for Rest<MAX> {
    fn write(value: &String, to: &mut Vec<u8>) {
        <Self as Format<&str>>::write(&value.as_str(), to);
    }

    fn read(fields: &mut Fields<'a>) -> Result<String, &'static str> {
        <Self as Format<&str>>::read(fields).map(str::to_owned)
    }
}
