//! Stubs for entry points that are not implemented. Clients treat a null table entry as a sign of a
//! broken adapter, so every entry of every table contains a function.

use super::boundary::enter;
use super::failure::Failure;
use unified_runtime_sys::ur_result_t;

/// The reason why an entry point is not implemented.
pub(crate) trait Reason: 'static {
    /// The message for callers.
    const TEXT: &str;
}

/// A type of table entry for which a stub exists. The stub returns `UNSUPPORTED_FEATURE` with the
/// message from `R`.
pub(crate) trait Stub<R> {
    /// The table entry that contains the stub.
    const STUB: Self;
}

fn unsupported<R: Reason>() -> ur_result_t {
    enter(|_| Err(Failure::unsupported(R::TEXT)))
}

macro_rules! stubs {
    ($($argument:ident)*) => {
        impl<R: Reason, $($argument),*> Stub<R>
            for Option<unsafe extern "C" fn($($argument),*) -> ur_result_t>
        {
            const STUB: Self = {
                unsafe extern "C" fn stub<R: Reason, $($argument),*>($(_: $argument),*) -> ur_result_t {
                    unsupported::<R>()
                }
                Some(stub::<R, $($argument),*>)
            };
        }
    };
}

stubs!(A);
stubs!(A B);
stubs!(A B C);
stubs!(A B C D);
stubs!(A B C D E);
stubs!(A B C D E F);
stubs!(A B C D E F G);
stubs!(A B C D E F G H);
stubs!(A B C D E F G H I);
stubs!(A B C D E F G H I J);
stubs!(A B C D E F G H I J K);
stubs!(A B C D E F G H I J K L);
stubs!(A B C D E F G H I J K L M);
stubs!(A B C D E F G H I J K L M N);
stubs!(A B C D E F G H I J K L M N O);
stubs!(A B C D E F G H I J K L M N O P);
stubs!(A B C D E F G H I J K L M N O P Q);
