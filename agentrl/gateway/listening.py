"""The address a gateway listens on, and the one that programs are told."""

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from agentrl.errors import ConfigError
from agentrl.runtime.reachability import is_url

LOOPBACK = "127.0.0.1"
_HOST = (
    "host is {host!r}, but a gateway listens on an IP address of this machine, with or without a "
    "port: host: 0.0.0.0, or host: 0.0.0.0:8000"
)
_ADVERTISE = (
    "advertise is {url!r}, but programs are told the URL of a machine, without a path: "
    "advertise: http://NAME-OR-IP, or http://NAME-OR-IP:PORT"
)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address of a gateway, and the URL that programs are told; see `parse_listen_address`."""

    host: str = LOOPBACK
    """IP address of this machine; `0.0.0.0` and `::` are all of them."""
    port: int = 0
    """0 takes a free port."""
    advertise: str = ""
    """Base URL that programs are told; the port is added where it names none. Empty for `host`."""

    @property
    def is_loopback(self) -> bool:
        """True where no other machine reaches the gateway."""
        return ip_address(self.host).is_loopback

    def build_url(self, port: int) -> str:
        """Return the base URL that programs are told of a gateway that listens on a port."""
        url = self.advertise or f"http://{_bracket(self.host)}"
        return url if _names_port(url) else f"{url}:{port}"

    def explain_reach(self, port: int) -> str:
        """Return the warning that says who can reach the gateway; empty on the loopback device."""
        if self.is_loopback:
            return ""
        anywhere = ip_address(self.host).is_unspecified
        reached = "any address of this machine" if anywhere else self.host
        return (
            f"the gateway of agent programs listens on {reached}, port {port}: every machine and "
            "container that can reach that may send requests. Those without the key of a running "
            "episode are refused; keys and texts travel unencrypted. Let a firewall admit only the "
            f"machines of your programs, or set host: {LOOPBACK}"
        )


def parse_listen_address(host: str = LOOPBACK, advertise: str | None = None) -> ListenAddress:
    """Return the address that two keys of a config say; `ConfigError` where they cannot be kept.

    >>> parse_listen_address("0.0.0.0", "http://trainer").build_url(8000)
    'http://trainer:8000'
    """
    address, port = _parse_host(host)
    ip = ip_address(address)
    if advertise is None:
        if ip.is_unspecified:
            raise ConfigError(
                f"host is {host!r}, all addresses of this machine, and programs must be told one "
                "of them: set advertise: http://NAME-OR-IP"
            )
        return ListenAddress(address, port)
    url = _parse_advertise(advertise)
    if _names_port(url) and not port:
        raise ConfigError(
            f"advertise is {advertise!r}, whose port something must forward to the gateway, which "
            f"listens on a free port: set it, host: {_bracket(address)}:PORT, or name no port in "
            "advertise"
        )
    advertised_ip = _find_ip(urlsplit(url).hostname or "")
    if advertised_ip is not None and advertised_ip.is_unspecified:
        raise ConfigError(
            f"advertise is {advertise!r}, which nobody can connect to; name a machine"
        )
    if (
        ip.is_loopback
        and advertised_ip is not None
        and not advertised_ip.is_loopback
        and not _names_port(url)
    ):
        raise ConfigError(
            f"advertise is {advertise!r}, but the gateway listens on {address}, which that address "
            "does not lead to: set host: 0.0.0.0"
        )
    return ListenAddress(address, port, url)


def open_socket(address: ListenAddress) -> socket.socket:
    """Return a socket bound to an address; `ConfigError` where this machine cannot listen there."""
    is_six = ip_address(address.host).version == 6
    listening = socket.socket(socket.AF_INET6 if is_six else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
    except OSError as error:
        listening.close()
        place = f"{_bracket(address.host)}{f':{address.port}' if address.port else ''}"
        raise ConfigError(
            f"host is {place}, where this machine cannot listen ({error.strerror or error}): give "
            "one of its own addresses or 0.0.0.0, and no port or one that is free; each process "
            "that plays episodes needs a port of its own"
        ) from error
    return listening


def _parse_host(host: str) -> tuple[str, int]:
    address, port = host, "0"
    if host.startswith("["):
        address, closed, rest = host[1:].partition("]")
        port = rest.removeprefix(":") if rest else "0" if closed else ""
    elif host.count(":") == 1:
        address, _, port = host.partition(":")
    address = LOOPBACK if address == "localhost" else address
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 2**16
    ip = _find_ip(address)
    if ip is None or not is_port or "%" in address:
        raise ConfigError(_HOST.format(host=host))
    return str(ip), int(port)


def _parse_advertise(url: str) -> str:
    fault = ConfigError(_ADVERTISE.format(url=url))
    if not is_url(url) or not url.isascii() or not url.isprintable() or " " in url:
        raise fault
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise fault
    return f"{parts.scheme}://{parts.netloc}"


def _names_port(url: str) -> bool:
    """Return whether a URL is whole: `https` is a proxy's, whose port is its own affair."""
    parts = urlsplit(url)
    return parts.port is not None or parts.scheme == "https"


def _find_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
