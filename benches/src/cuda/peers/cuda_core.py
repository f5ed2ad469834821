import importlib.metadata

try:
    from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions
    from cuda.core import Event, EventOptions
except ImportError:
    from cuda.core.experimental import Buffer, Device, DeviceMemoryResource
    from cuda.core.experimental import DeviceMemoryResourceOptions, Event, EventOptions

LENGTH = 64 << 20


def start():
    device = Device(0)
    device.set_current()
    return device, device.create_stream()


def either(thing, attribute, method):
    """Returns a value that newer versions have as a property and older ones as a method."""
    if hasattr(thing, attribute):
        return getattr(thing, attribute)
    return getattr(thing, method)()


def record(stream):
    """Records a new event that can be shared. Such an event is recorded once."""
    return stream.record(options=EventOptions(ipc_enabled=True))


def share(event):
    return either(event, "ipc_descriptor", "get_ipc_descriptor")


def wait(link, stream):
    """Receives an event that the other process has recorded, and makes the stream wait for it."""
    (descriptor,) = link.receive()
    event = Event.from_ipc_descriptor(descriptor)
    stream.wait(event)
    return event


def leader(link):
    device, stream = start()
    options = DeviceMemoryResourceOptions(max_size=4 * LENGTH, ipc_enabled=True)
    pool = DeviceMemoryResource(device, options=options)
    handle = either(pool, "allocation_handle", "get_allocation_handle")
    link.send("pool", descriptors=[int(handle)])

    def open_memory(count):
        answer = {"open": [], "close": []}
        for _ in range(count):
            memory = pool.allocate(LENGTH, stream=stream)
            stream.sync()
            link.send("open", share(memory))
            opened, closed = link.receive()
            answer["open"].append(opened)
            answer["close"].append(closed)
            memory.close(stream)
            stream.sync()
        return answer

    def open_event(count):
        created = [record(stream) for _ in range(count)]
        link.send("event", [share(event) for event in created])
        (opened,) = link.receive()
        return {"event": opened}

    def once():
        own = record(stream)
        link.send(share(own))
        other = wait(link, stream)
        stream.sync()
        own.close()
        other.close()

    def trip(count):
        link.send("trip", count)
        return {"trip": times(once, count)}

    abilities = {"open": open_memory, "event": open_event, "trip": trip}
    return abilities, f"cuda.core {importlib.metadata.version('cuda-core')}"


def follower(link):
    device, stream = start()
    pool = None
    while True:
        match link.receive():
            case "pool", descriptor:
                pool = DeviceMemoryResource.from_allocation_handle(device, descriptor)
            case "open", descriptor:
                import_it = lambda: Buffer.from_ipc_descriptor(pool, descriptor, stream=stream)
                memory, opened = timed(import_it)
                stream.sync()

                def close():
                    memory.close(stream)
                    stream.sync()

                link.send(opened, timed(close)[1])
            case "event", descriptors:
                kept, opened = [], []
                for descriptor in descriptors:
                    event, each = timed(lambda: Event.from_ipc_descriptor(descriptor))
                    kept.append(event)
                    opened.append(each)
                link.send(opened)
            case "trip", count:
                kept = []
                for _ in range(count):
                    kept.append(wait(link, stream))
                    kept.append(record(stream))
                    link.send(share(kept[-1]))


run(leader, follower)
