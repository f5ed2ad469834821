"""Links to other hosts, through which a program reads and writes remote memory and follows remote
events.

>>> from crosshandle import Context, link
>>> listener = link.listen("127.0.0.1:0", token=(token := link.new_token()), data="tls")
>>> other = link.connect(listener.address, token=token, data="tls")

Both hosts prove their identity, with a shared token or with certificates. `docs/hosts.md` describes
which attacks a link prevents.
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
    """Paths of PEM files that prove this host's identity. Each host trusts certificates that
    `authority` has signed.

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
    """Connects to another host that listens at an address, `host:port`. Returns the link.

    `context` opens the local objects that the remote host requests, and owns the mirrors of remote
    events. The default is the default context for host memory. If local memory is on a GPU, pass a
    context for that GPU. `data` is the transport for the contents of memory: UCX over the network
    interface `interface`, or TLS. `keep_alive` is the number of seconds without a message after
    which the link ends (default: 10). `timeout` is the maximum number of seconds to connect. After
    that, this function raises `TimedOutError`. With `names`, the remote host may read the named
    objects that this host's holder keeps.

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
    """Listens for links from other hosts at an address, `host:port`.

    Port 0 selects a free port. The other arguments have the same meaning as for `connect`.

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
