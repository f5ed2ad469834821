"""Links to other hosts: memory is reached there, and events are mirrored.

>>> from crosshandle import Context, link
>>> listener = link.listen("127.0.0.1:0", token=(token := link.new_token()), data="tls")
>>> other = link.connect(listener.address, token=token, data="tls")

Both sides prove who they are, by a token that they share or by certificates. `docs/hosts.md` says what
a link protects from whom.
"""

from os import PathLike, fspath
from typing import Literal, NamedTuple

from ._crosshandle import Context, Link, Listener, RemoteEvent, RemoteMemory, new_token
from ._sharing import default_context

__all__ = [
    "Certificates",
    "Link",
    "Listener",
    "RemoteEvent",
    "RemoteMemory",
    "connect",
    "listen",
    "new_token",
]

_Path = str | PathLike[str]


class Certificates(NamedTuple):
    """Certificates in PEM files. Each side trusts whatever its authority has signed."""

    authority: _Path
    certificate: _Path
    key: _Path
    #: The name that the listening side's certificate is for.
    peer_name: str


def connect(
    address: str,
    *,
    context: Context | None = None,
    token: str | None = None,
    token_file: _Path | None = None,
    certificates: Certificates | None = None,
    data: Literal["ucx", "tls"] = "ucx",
    keep_alive: float | None = None,
    interface: str | None = None,
    transports: str | None = None,
    names: bool = False,
    timeout: float | None = None,
) -> Link:
    """Connects to a host that listens at an address, `host:port`.

    `context` (default: the host's) opens what the other side asks for, and has the mirrors of its events; a
    link to or from memory of a GPU needs one of that GPU. `data` says how the bytes of memory travel:
    by UCX, over the network interface `interface`, or over TLS. `keep_alive` (default: 10) is after how many
    seconds of silence the link ends. `timeout` is how many seconds connecting may take. `names` lets the other side read what this host's holder has names for.
    """
    context = default_context() if context is None else context
    options = _options(token, token_file, certificates, data, keep_alive, interface, transports, names)
    return Link.connect(address, context, options, timeout)


def listen(
    address: str,
    *,
    context: Context | None = None,
    token: str | None = None,
    token_file: _Path | None = None,
    certificates: Certificates | None = None,
    data: Literal["ucx", "tls"] = "ucx",
    keep_alive: float | None = None,
    interface: str | None = None,
    transports: str | None = None,
    names: bool = False,
) -> Listener:
    """Listens at an address, `host:port`, with port 0 for any. The rest is as for `connect`."""
    context = default_context() if context is None else context
    options = _options(token, token_file, certificates, data, keep_alive, interface, transports, names)
    return Listener.bind(address, context, options)


def _options(
    token: str | None,
    token_file: _Path | None,
    certificates: Certificates | None,
    data: str,
    keep_alive: float | None,
    interface: str | None,
    transports: str | None,
    names: bool,
) -> dict[str, object]:
    files = None
    if certificates is not None:
        files = (*(fspath(path) for path in certificates[:3]), certificates.peer_name)
    return {
        "token": token,
        "token_file": None if token_file is None else fspath(token_file),
        "certificates": files,
        "data": data,
        "keep_alive": keep_alive,
        "interface": interface,
        "transports": transports,
        "names": names,
    }
