"""Two processes compute on one array, each with the library of its choice.

    share_arrays.py PRODUCER CONSUMER [--turns 200]       each of: numpy, torch, cupy

The producer allocates the array in its library's usual way, and sends handles to it and to two
events. The consumer opens them, and both take turns. One process writes the array and signals. The
other process waits, checks every element, changes all elements and signals back. With torch and
CuPy these steps are kernels on their own streams, submitted ahead of time, and no host thread waits
in between. """

import argparse
import faulthandler
import importlib.util
import json
import os
import select
import subprocess
import sys
import time

import crosshandle
from libraries import LIBRARIES, SOON

# Time after which late processes are killed from outside, in seconds.
GRACE = 10
# Number of turns with the library's own events, each of which is shared separately.
EVENT_TURNS = 20
# The number of a signal that no process submits.
LAST_TURN = 1000


class Peer:
    """The other process. Its output is our input, and our output is its input. Messages are
    lines."""

    def __init__(self):
        self.lines = os.fdopen(os.dup(0))
        self.out = os.fdopen(os.dup(1), "w")
        # Output that libraries print must not be read as a message.
        os.dup2(2, 1)

    def send(self, **message):
        print(json.dumps(message), file=self.out, flush=True)

    def receive(self):
        line = self.lines.readline()
        if not line:
            sys.exit("the other process has ended")
        return json.loads(line)


class Numbers:
    """The computation of both processes. All elements differ, and change with each turn."""

    def __init__(self, library):
        self.index = library.arange()
        # The number of elements with wrong values.
        self.wrong = library.zero()
        # Loads the kernels by using them once, because a waiting stream would delay the load.
        scratch = library.arange()
        self.write(scratch, 1)
        self.check_written(scratch, 1)
        self.change(scratch, 1)
        self.check_changed(scratch, 1)
        library.synchronize()

    def write(self, array, turn):
        array[...] = self.index * turn + 7

    def check_written(self, array, turn):
        self.wrong += (array != self.index * turn + 7).sum()

    def change(self, array, turn):
        array *= 3
        array += turn

    def check_changed(self, array, turn):
        self.wrong += (array != self.index * (3 * turn) + (21 + turn)).sum()

    def judge(self, what):
        wrong = int(self.wrong)
        if wrong:
            sys.exit(f"{what}: {wrong} elements were wrong")


def produce(peer, library, context, options):
    refuse(library, context, options.setting)
    if options.setting == "cudaMallocAsync":
        return peer.send(task="end")
    memory, array = library.share(context)
    numbers = Numbers(library)
    for stream in library.streams:
        produce_turns(peer, library, context, options.turns, stream, memory, array, numbers)
    if library.has_events:
        produce_events(peer, library, context, memory, array, numbers)
    if options.setting == "expandable segments":
        # The driver keeps such memory for importers.
        return produce_last(peer, library, context, memory, array, numbers)
    # Importers must close other memory before its owner frees it, and this importer has done so.
    memory.close()
    peer.send(task="end")


def refuse(library, context, setting):
    """Tries to share memory that cannot be shared."""
    for what, array, size, text in library.refused(setting):
        try:
            context.adopt_memory(library.address(array), size)
        except crosshandle.Error as error:
            assert text in str(error), error
            say(f"{what}: refused, {error}")
        else:
            sys.exit(f"{what}: not refused")


def produce_turns(peer, library, context, turns, name, memory, array, numbers):
    filled, answered = context.create_event(), context.create_event()
    handles = {"memory": memory.text(), "filled": filled.text(), "answered": answered.text()}
    peer.send(task="turns", turns=turns, stream=name, **handles)
    peer.receive()
    began = time.monotonic()
    with library.stream(name, context) as stream:
        for turn in range(1, turns + 1):
            numbers.write(array, turn)
            stream.signal(filled)
            stream.wait(answered, turn)
            numbers.check_changed(array, turn)
        submitted = time.monotonic()
        stream.finish(SOON)
        ended = time.monotonic()
        numbers.judge(name)
    peer.receive()
    times = f"{ended - began:.3f} s, submitted within {submitted - began:.3f} s"
    say(f"{turns} turns on {name}: {times}")


def consume_turns(peer, library, context, task, is_careless):
    filled, answered = context.open_event(task["filled"]), context.open_event(task["answered"])
    with context.open_memory(task["memory"]) as memory:
        array = library.wrap(memory)
        numbers = Numbers(library)
        peer.send(is_ready=True)
        with library.stream(task["stream"], context) as stream:
            for turn in range(1, task["turns"] + 1):
                if not is_careless:
                    stream.wait(filled, turn)
                numbers.check_written(array, turn)
                numbers.change(array, turn)
                stream.signal(answered)
            stream.finish(SOON)
            numbers.judge(task["stream"])
        del array
    peer.send(is_closed=True)


def produce_events(peer, library, context, memory, array, numbers):
    """Takes turns with the library's own events in both directions."""
    peer.send(task="events", memory=memory.text())
    peer.receive()
    with library.stream("its own stream", context) as stream:
        for turn in range(1, EVENT_TURNS + 1):
            numbers.write(array, turn)
            filled = send_event(peer, library, context)
            wait_for_event(peer, library, context)
            numbers.check_changed(array, turn)
        stream.finish(SOON)
        numbers.judge("events of the library's")
    peer.receive()
    say(f"{EVENT_TURNS} turns with events of the library's")


def consume_events(peer, library, context, task):
    with context.open_memory(task["memory"]) as memory:
        array = library.wrap(memory)
        numbers = Numbers(library)
        peer.send(is_ready=True)
        with library.stream("its own stream", context) as stream:
            for turn in range(1, EVENT_TURNS + 1):
                wait_for_event(peer, library, context)
                numbers.check_written(array, turn)
                numbers.change(array, turn)
                changed = send_event(peer, library, context)
            stream.finish(SOON)
            numbers.judge("events of the library's")
        del array
    peer.send(is_closed=True)


def produce_last(peer, library, context, memory, array, numbers):
    """Ends while the consumer has the memory open and the consumer's stream waits for a signal."""
    filled = context.create_event()
    handles = {"memory": memory.text(), "filled": filled.text()}
    peer.send(task="outlive", process=os.getpid(), **handles)
    peer.receive()
    numbers.write(array, LAST_TURN)
    library.synchronize()


def outlive(peer, library, context, task):
    """Checks what remains after the producer's end: its memory, and a stream that continues."""
    filled = context.open_event(task["filled"])
    ended = os.pidfd_open(task["process"])
    with context.open_memory(task["memory"]) as memory:
        array = library.wrap(memory)
        numbers = Numbers(library)
        with library.stream("its own stream", context) as stream:
            stream.wait(filled, 1)
            peer.send(is_waiting=True)
            assert select.select([ended], [], [], SOON)[0], "the producer does not end"
            numbers.check_written(array, LAST_TURN)
            try:
                stream.finish(SOON)
                filled.wait(1, SOON)
            except crosshandle.Error as error:
                assert "has ended" in str(error), error
                say(f"a stream that waited for a process that ended: {error}")
            else:
                sys.exit("a signal that no process submitted")
            numbers.judge("memory of a process that ended")
        del array


def send_event(peer, library, context):
    """Sends an event that completes when the library's current stream reaches this point."""
    theirs, number = library.record()
    ours = context.adopt_event(number)
    peer.send(event=ours.text())
    # Opening the handle needs the first event, and the wait needs the second.
    return ours, theirs


def wait_for_event(peer, library, context):
    """Makes the library's current stream wait through an event of the driver."""
    opened = context.open_event(peer.receive()["event"])
    library.wait(context.native_event(opened))


def play(options):
    """Runs one of the two processes."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds, exit=True)
    peer = Peer()
    name = options.producer if options.role == "producer" else options.consumer
    library = LIBRARIES[name]()
    say(f"{options.role}: {name} {sys.modules[name].__version__}")
    with crosshandle.Context(library.device) as context:
        if options.role == "producer":
            return produce(peer, library, context, options)
        while (task := peer.receive())["task"] != "end":
            if task["task"] == "turns":
                consume_turns(peer, library, context, task, options.careless)
            elif task["task"] == "events":
                consume_events(peer, library, context, task)
            else:
                return outlive(peer, library, context, task)


def run(options, setting, variables):
    """Runs both processes to their end. Returns whether both succeeded."""
    to_consumer, to_producer = os.pipe(), os.pipe()
    ends = {"producer": (to_producer[0], to_consumer[1]), "consumer": (to_consumer[0], to_producer[1])}
    processes = {}
    for role, (stdin, stdout) in ends.items():
        arguments = [*sys.argv, "--role", role, "--setting", setting]
        own = variables if role == "producer" else {}
        processes[role] = subprocess.Popen(
            [sys.executable, *arguments], stdin=stdin, stdout=stdout, env={**os.environ, **own}
        )
        os.close(stdin)
        os.close(stdout)
    deadline = time.monotonic() + options.seconds + GRACE
    codes = {}
    for role, process in processes.items():
        try:
            codes[role] = process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            codes[role] = "late"
            process.kill()
            process.wait()
    if any(codes.values()):
        say(f"failed {setting}: {codes}")
        return False
    say(f"passed {setting}")
    return True


def say(what):
    print(what, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("producer", choices=LIBRARIES)
    parser.add_argument("consumer", choices=LIBRARIES)
    parser.add_argument("--turns", type=int, default=200)
    late = "until two processes that have not ended show where they are (%(default)s)"
    parser.add_argument("--seconds", type=int, default=80, help=late)
    setting = "only this one of the ways in which the producer's library allocates"
    parser.add_argument("--setting", help=setting)
    careless = "leave out the consumer's waits, which must come out"
    parser.add_argument("--careless", action="store_true", help=careless)
    parser.add_argument("--role", choices=("producer", "consumer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        return play(options)
    title = f"{options.producer} with {options.consumer}"
    for name in {options.producer, options.consumer}:
        if importlib.util.find_spec(name) is None:
            return say(f"unavailable {name}\n{title}: 0 passed, 1 skipped, 0 failed")
    settings = LIBRARIES[options.producer].settings
    wanted = settings if options.setting is None else [options.setting]
    results = [run(options, setting, settings[setting]) for setting in wanted]
    say(f"{title}: {sum(results)} passed, 0 skipped, {len(results) - sum(results)} failed")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
