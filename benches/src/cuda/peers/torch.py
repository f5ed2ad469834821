import torch
from torch.multiprocessing.reductions import reduce_tensor

LENGTH = 64 << 20
COPY = 1 << 30
COPIES = 4


def events(link, device):
    """Returns a stream, an event of this process, and an event of the other process."""
    stream = torch.cuda.Stream(device)
    own = torch.cuda.Event(interprocess=True)
    own.record(stream)
    link.send(own.ipc_handle())
    (handle,) = link.receive()
    return stream, own, torch.cuda.Event.from_ipc_handle(device, handle)


def tensor(length, device, value):
    return torch.full((length // 4,), value, dtype=torch.int32, device=device)


def leader(link):
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    stream, own, other = events(link, device)

    def open_memory(count):
        answer = {"open": [], "close": []}
        for index in range(count):
            memory = tensor(LENGTH, device, index)
            torch.cuda.synchronize()
            link.send("open", reduce_tensor(memory), index)
            opened, closed = link.receive()
            answer["open"].append(opened)
            answer["close"].append(closed)
        return answer

    def open_event(count):
        created = [torch.cuda.Event(interprocess=True) for _ in range(count)]
        for event in created:
            event.record(stream)
        link.send("event", [event.ipc_handle() for event in created])
        (opened,) = link.receive()
        return {"event": opened}

    def once():
        own.record(stream)
        link.send_byte()
        link.receive_byte()
        stream.wait_event(other)
        stream.synchronize()

    def trip(count):
        link.send("trip", count)
        return {"trip": times(once, count)}

    def copy_from(source):
        source = torch.device(source)

        def copy(count):
            memory = tensor(COPY, source, 1)
            target = tensor(COPY, device, 0)

            def copies():
                for _ in range(COPIES):
                    target.copy_(memory, non_blocking=True)
                torch.cuda.synchronize()

            torch.cuda.synchronize(source)
            copies()
            return {"copy": [COPY * COPIES / each for each in times(copies, count)]}

        return copy

    abilities = {
        "open": open_memory,
        "event": open_event,
        "trip": trip,
        "copy": copy_from("cuda:0"),
        "copy2": copy_from("cuda:1"),
    }
    return abilities, f"torch {torch.__version__}"


def follower(link):
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    stream, own, other = events(link, device)
    while True:
        match link.receive():
            case "open", (rebuild, arguments), value:
                memory, opened = timed(lambda: rebuild(*arguments))
                if int(memory[0]) != value or int(memory[-1]) != value:
                    raise RuntimeError("not what the other process wrote")
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                del memory
                link.send(opened, time.perf_counter_ns() - start)
            case "event", handles:
                kept, opened = [], []
                for handle in handles:
                    open_it = lambda: torch.cuda.Event.from_ipc_handle(device, handle)
                    event, each = timed(open_it)
                    kept.append(event)
                    opened.append(each)
                link.send(opened)
            case "trip", count:
                for _ in range(count):
                    link.receive_byte()
                    stream.wait_event(other)
                    own.record(stream)
                    link.send_byte()


run(leader, follower)
