"""Links to other hosts: reading and writing their memory, and mirroring their events.

>>> from crosshandle import Context, link
>>> listener = link.listen("127.0.0.1:0", token=(token := link.new_token()), data="tls")
>>> other = link.connect(listener.address, token=token, data="tls")

Both sides prove their identity, by a shared token or by certificates. `docs/hosts.md` describes
what a link protects against.
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
    """Certificates in PEM files. Each side trusts certificates that `authority` has signed.

    >>> ours = link.Certificates("authority.pem", "host.pem", "host.key", peer_name="store.example")
    """

    authority: _Path
    certificate: _Path
    key: _Path
    #: The name in the certificate of the listening host.
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

    `context` opens the objects that the peer requests, and owns the mirrors of the peer's events.
    By default, it is the host's default context. A link to or from memory of a GPU needs a context
    of that GPU. `data` is the transport for the contents of memory: UCX over the network interface
    `interface`, or TLS. `keep_alive` is the number of seconds of silence after which the link ends
    (default: 10). `timeout` is the maximum number of seconds to connect. With `names`, the peer may
    read the named objects of this host's holder.

    >>> token = link.new_token()
    >>> with link.listen("127.0.0.1:0", token=token, data="tls") as listener:
    ...     with link.connect(listener.address, token=token, data="tls") as other:
    ...         other.ended is None
    True
    """
    context = default_context() if context is None else context
    options = _options(token, token_file, certificates, data, keep_alive, interface, transports, names)
    return Link._connect(address, context, options, timeout)


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
    """Listens at an address, `host:port`.

    Port 0 selects a free port. The other arguments are as for `connect`.

    >>> token = link.new_token()
    >>> with link.listen("127.0.0.1:0", token=token, data="tls") as listener:
    ...     with link.connect(listener.address, token=token, data="tls") as other:
    ...         other.ended is None
    True
    """
    context = default_context() if context is None else context
    options = _options(token, token_file, certificates, data, keep_alive, interface, transports, names)
    return Listener._bind(address, context, options)


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
