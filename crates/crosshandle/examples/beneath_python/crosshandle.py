"""Crosshandle's objects for Python, based on the functions of `lib.rs`.

The module loads the library from the path in `CROSSHANDLE_LIBRARY`, or from the directory of this
file. An object is closed when its last reference is dropped, or earlier by `close`. """

import ctypes
import os
import pathlib

NAME = "libbeneath_python.so"
POINTER, SIZE, NUMBER, TEXT = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_uint64,
    ctypes.c_char_p,
)
SECONDS, STATUS = ctypes.c_double, ctypes.c_int32
# Argument types and result type of each function.
FUNCTIONS = {
    "error": ((), TEXT),
    "context_new": ((TEXT,), POINTER),
    "context_free": ((POINTER,), None),
    "memory_new": ((POINTER, SIZE), POINTER),
    "memory_adopt": ((POINTER, SIZE, SIZE), POINTER),
    "memory_open": ((POINTER, TEXT), POINTER),
    "memory_handle": ((POINTER, TEXT), STATUS),
    "memory_address": ((POINTER,), SIZE),
    "memory_len": ((POINTER,), SIZE),
    "memory_free": ((POINTER,), None),
    "event_new": ((POINTER,), POINTER),
    "event_adopt": ((POINTER, SIZE), POINTER),
    "event_open": ((POINTER, TEXT), POINTER),
    "event_handle": ((POINTER, TEXT), STATUS),
    "event_signal": ((POINTER,), STATUS),
    "event_wait": ((POINTER, NUMBER, SECONDS), STATUS),
    "event_free": ((POINTER,), None),
    "native_event_new": ((POINTER, POINTER), POINTER),
    "native_event_value": ((POINTER,), SIZE),
    "native_event_free": ((POINTER,), None),
    "queue_new": ((POINTER,), POINTER),
    "queue_adopt": ((POINTER, SIZE), POINTER),
    "queue_value": ((POINTER,), SIZE),
    "queue_signal": ((POINTER, POINTER), STATUS),
    "queue_wait": ((POINTER, POINTER, NUMBER), STATUS),
    "queue_finish": ((POINTER, SECONDS), STATUS),
    "queue_free": ((POINTER,), None),
}
# Length of a handle's text in characters, with the terminating zero.
HANDLE = 144 + 1


class Error(Exception):
    """Contains the library's error text of a failed call."""


def load():
    path = os.environ.get("CROSSHANDLE_LIBRARY")
    library = ctypes.CDLL(path or str(pathlib.Path(__file__).with_name(NAME)))
    functions = {}
    for name, (arguments, result) in FUNCTIONS.items():
        function = functions[name] = getattr(library, "crosshandle_" + name)
        function.argtypes, function.restype = arguments, result
    return functions


_functions = load()


def call(name, *arguments):
    """Calls a function, and raises `Error` if the call fails."""
    result = _functions[name](*arguments)
    restype = FUNCTIONS[name][1]
    if restype in (POINTER, SIZE) and not result or restype is STATUS and result != 0:
        raise Error(_functions["error"]().decode())
    return result


class Object:
    """An object that the library has created."""

    kind = None
    # ctypes passes this value for the object in calls.
    _as_parameter_ = None

    def __init__(self, pointer):
        self._as_parameter_ = pointer

    def call(self, name, *arguments):
        return call(f"{self.kind}_{name}", self, *arguments)

    def text(self):
        """Returns a handle as text."""
        place = ctypes.create_string_buffer(HANDLE)
        self.call("handle", place)
        return place.value.decode()

    def close(self):
        pointer, self._as_parameter_ = self._as_parameter_, None
        if pointer is not None:
            _functions[f"{self.kind}_free"](pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


class Memory(Object):
    kind = "memory"

    @property
    def address(self):
        return self.call("address")

    def __len__(self):
        return self.call("len")


class Event(Object):
    kind = "event"

    def signal(self):
        self.call("signal")

    def wait(self, value, seconds):
        self.call("wait", value, seconds)


class NativeEvent(Object):
    kind = "native_event"

    @property
    def value(self):
        return self.call("value")


class Queue(Object):
    kind = "queue"

    @property
    def value(self):
        return self.call("value")

    def signal(self, event):
        self.call("signal", event)

    def wait(self, event, value):
        self.call("wait", event, value)

    def finish(self, seconds):
        self.call("finish", seconds)


class Context(Object):
    kind = "context"

    def __init__(self, device):
        super().__init__(call("context_new", device.encode()))

    def allocate(self, size):
        return Memory(call("memory_new", self, size))

    def adopt_memory(self, address, size):
        return Memory(call("memory_adopt", self, address, size))

    def open_memory(self, handle):
        return Memory(call("memory_open", self, handle.encode()))

    def create_event(self):
        return Event(call("event_new", self))

    def adopt_event(self, value):
        return Event(call("event_adopt", self, value))

    def open_event(self, handle):
        return Event(call("event_open", self, handle.encode()))

    def native_event(self, event):
        return NativeEvent(call("native_event_new", self, event))

    def create_queue(self):
        return Queue(call("queue_new", self))

    def adopt_queue(self, value):
        return Queue(call("queue_adopt", self, value))
