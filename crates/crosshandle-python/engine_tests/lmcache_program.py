"""One side of an exchange of LMCache events, on the device that LMCache has chosen.

Each line of the input is a JSON list: the name of a method of LMCache's `EventIPCBackend`, and the
names of the events or handles that it is about. A stream and a device are added here.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import lmcache
from lmcache.v1.platform import get_device_spec


def main() -> None:
    spec = get_device_spec(lmcache.torch_device_type)
    assert spec is not None
    backend = spec.event_ipc_backend
    device = 0 if lmcache.torch_device_type == "cuda" else "cpu"
    stream = spec.current_stream(device) if lmcache.torch_device_type == "cuda" else None
    events: dict[str, Any] = {}

    def figures() -> dict[str, float]:
        """Returns the median times of the steps in microseconds."""
        times: dict[str, list[float]] = {"export": [], "record": [], "query": []}
        for _ in range(200):
            event = backend.create_event(device)
            for name, step in (
                ("record", lambda: backend.record_event(event, stream)),
                ("export", lambda: backend.export_event(event, device)),
                ("query", lambda: backend.query_event(event)),
            ):
                begin = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - begin) * 1e6)
        return {name: statistics.median(taken) for name, taken in times.items()}

    def answer(name: str, argument: str = "", handle: str = "") -> Any:
        if name == "describe":
            backend.check_event_support(device)
            return [spec.backend_name, type(backend).__module__]
        if name == "create":
            events[argument] = backend.create_event(device)
            return backend.export_event(events[argument], device).hex()
        if name == "import":
            events[argument] = backend.import_event(bytes.fromhex(handle), device)
            return None
        if name == "record":
            return backend.record_event(events[argument], stream)
        if name == "query":
            return backend.query_event(events[argument])
        if name == "figures":
            return figures()
        begin = time.monotonic()
        if name == "wait":
            backend.wait_event(events[argument], stream)
        backend.synchronize_event(events[argument], device)
        return time.monotonic() - begin

    print("REPLY " + json.dumps({"result": None}), flush=True)
    for line in sys.stdin:
        try:
            reply = {"result": answer(*json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print("REPLY " + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
