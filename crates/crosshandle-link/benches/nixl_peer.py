"""One side of NIXL for the benchmark.

It reads requests, one per line, and replies to each with a line that starts with `ok` or `error`.
For a device such as `cuda:0` it uses GPU memory, allocated by torch, and otherwise host memory.
"""

import array
import os
import sys
import time

MIN_ROUNDS, MAX_ROUNDS = 3, 1000


class Peer:
    def start(self, device, length):
        from nixl_cu13._api import nixl_agent, nixl_agent_config

        length = int(length)
        if device == "host":
            self.tensor = None
            self.bytes = array.array("B", bytes(length))
            place = (self.bytes.buffer_info()[0], length, 0)
            self.kind = "DRAM"
        else:
            import torch

            self.torch = torch
            self.tensor = torch.zeros(length, dtype=torch.uint8, device=device)
            torch.cuda.synchronize()
            place = (self.tensor.data_ptr(), length, self.tensor.get_device())
            self.kind = "VRAM"
        self.place = place
        self.agent = nixl_agent(f"crosshandle-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        if "UCX" not in self.agent.backends:
            raise RuntimeError("NIXL has no UCX here")
        self.registered = self.agent.register_memory([(*place, "")], self.kind)
        metadata = self.agent.get_agent_metadata().hex()
        return f"{metadata} {place[0]} {place[2]}"

    def connect(self, metadata, address, device):
        self.remote = self.agent.add_remote_agent(bytes.fromhex(metadata))
        if isinstance(self.remote, bytes):
            self.remote = self.remote.decode()
        self.there = (int(address), int(device))
        return ""

    def move(self, operation, length, millis):
        length, limit = int(length), int(millis) / 1000
        own = self.agent.get_xfer_descs([(self.place[0], length, self.place[2])], self.kind)
        other = self.agent.get_xfer_descs([(self.there[0], length, self.there[1])], self.kind)
        handle = self.agent.initialize_xfer(operation, own, other, self.remote)

        def step():
            state = self.agent.transfer(handle)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"NIXL's transfer: {state}")

        step()
        times, begun = [], time.perf_counter()
        while len(times) < MIN_ROUNDS or (
            time.perf_counter() - begun < limit and len(times) < MAX_ROUNDS
        ):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
        self.agent.release_xfer_handle(handle)
        times.sort()
        return f"{times[len(times) // 2]} {len(times)}"

    def put(self, length, millis):
        return self.move("WRITE", length, millis)

    def get(self, length, millis):
        return self.move("READ", length, millis)

    def fill(self, value, length):
        value, length = int(value), int(length)
        if self.tensor is None:
            self.bytes[:length] = array.array("B", bytes([value]) * length)
        else:
            self.tensor[:length] = value
            self.torch.cuda.synchronize()
        return ""

    def holds(self, value, length):
        value, length = int(value), int(length)
        if self.tensor is None:
            same = self.bytes[:length] == array.array("B", bytes([value]) * length)
        else:
            same = bool((self.tensor[:length] == value).all())
        return "true" if same else "false"


def main():
    sys.path.insert(0, sys.argv[1])
    os.environ.setdefault("NIXL_PLUGIN_DIR", os.path.join(sys.argv[1], "nixl_cu13.libs", "nixl"))
    # Output of libraries must not be mistaken for replies.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = Peer()
    for line in sys.stdin:
        what, *words = line.split()
        try:
            print("ok", getattr(peer, what)(*words), file=answers)
        except Exception as error:  # It is the benchmark's to say.
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print("error", text, file=answers)
    # Exit without NIXL's destructors, which wait for the other side.
    os._exit(0)


main()
