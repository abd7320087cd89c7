"""Who may send work to a cluster: addresses and TLS.

Whoever can connect to a Dask scheduler or worker can make it execute any code. Therefore only this machine's own addresses
are used without TLS, unless the user asks for it.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ptxkit.cluster.reasons import first_line
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import refused, write_new

FILES = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
"""The files of a directory of keys: the certificate of the authority, the own certificate, and its private key."""
LOCAL_CLUSTERS = ("local", "local-gpus")  # what --cluster takes instead of an address
NEW_KEYS = "`ptxkit cluster keys DIRECTORY` writes new ones, for all machines of the cluster"
PORT = 8786  # Dask's default port of a scheduler


def check_installed() -> None:
    """Raise UnavailableError where Dask.distributed is not installed, or cannot be used, as with a wrong configuration file."""
    if find_spec("distributed") is None:
        raise UnavailableError("clusters need Dask: pip install 'ptxkit[cluster]'")
    try:
        import distributed  # noqa: F401
    except Exception as error:  # noqa: BLE001  # of Dask's configuration files and variables, or of a package that it needs
        raise UnavailableError(f"Dask cannot be used: {first_line(error)}") from None


@dataclass(frozen=True)
class Endpoint:
    """Where a scheduler is, and how to connect to it.

    Attributes:
        address: ``"tls://node1:8786"``. host: ``"node1"``.
        keys: of the TLS connection, see :data:`FILES`; None for a connection without TLS.
    """

    address: str
    host: str
    keys: Mapping[str, str] | None = None

    @property
    def security(self) -> Any:
        """As Dask's ``Security``."""
        from distributed import Security

        if self.keys is None:
            return Security()
        roles = ("scheduler", "worker", "client")
        files = {f"tls_{role}_{kind}": self.keys[kind] for role in roles for kind in ("cert", "key")}
        return Security(tls_ca_file=self.keys["ca"], require_encryption=True, **files)


def endpoint(address: str, tls: str | None = None, insecure: bool = False) -> Endpoint:
    """The endpoint of an address.

    Args:
        address: ``"tls://HOST:PORT"``, ``"tcp://HOST:PORT"`` or ``"HOST:PORT"``; without a port Dask's is taken.
        tls: directory with the files of :data:`FILES`, or None.
        insecure: permit a connection without TLS to another machine.

    Raises:
        UsageError: it is no address, another machine is to be used without TLS, or the keys cannot be used.
    """
    given_scheme, colon, rest = address.rpartition("://")
    scheme = given_scheme if colon else "tls" if tls is not None else "tcp"
    host, port = _split(rest, address)
    if scheme not in ("tcp", "tls"):
        raise UsageError(f"the address {address!r} begins with {scheme}://; clusters use tls:// or tcp://")
    if tls is not None and scheme == "tcp":
        raise UsageError(f"--tls is for tls://{rest}, not for {address}")
    if scheme == "tls" and tls is None:
        raise UsageError(f"{address} needs --tls DIRECTORY, with the keys that `ptxkit cluster keys DIRECTORY` writes")
    if host.isdigit():
        words = " or ".join(LOCAL_CLUSTERS)
        raise UsageError(f"{address!r} is a number, not the address of a scheduler: give HOST:PORT, {words}")
    if address in LOCAL_CLUSTERS:
        raise UsageError(f"{address!r} is a word for --cluster; here the address of a scheduler is needed, such as tls://node1:{PORT}")
    if scheme == "tcp" and not insecure and not is_loopback(host):
        place = "all networks of this machine" if host in ("0.0.0.0", "::") else f"{_taken_for(rest)}another machine"
        raise UsageError(
            f"{host} is {place}, and {scheme}:// is not encrypted: anybody who can connect can "
            "execute code there. Use tls:// with --tls DIRECTORY (ptxkit cluster keys DIRECTORY), or --insecure in a network "
            "that you trust"
        )
    bracketed = f"[{host}]" if ":" in host else host
    return Endpoint(f"{scheme}://{bracketed}:{port}", host, None if tls is None else key_files(tls))


def worker_command(at: Endpoint, tls: str | None) -> str:
    """What starts workers for a scheduler; ``tls`` is the directory of keys, or None."""
    insecure = " --insecure" if tls is None and not is_loopback(at.host) else ""
    return f"ptxkit cluster worker {at.address}{insecure if tls is None else f' --tls {tls}'}"


def check_port(at: Endpoint) -> None:
    """Raise UsageError for an address that nothing can be connected to, although a scheduler may listen at it."""
    if at.address.endswith(":0"):
        raise UsageError(f"{at.address} has no port; `ptxkit cluster scheduler` prints the address with the one that it took")


def _taken_for(word: str) -> str:
    """Words for a message where something was perhaps meant for one of ``local`` and ``local-gpus``."""
    from difflib import get_close_matches

    near = get_close_matches(word, LOCAL_CLUSTERS, n=1, cutoff=0.7)
    return f"not {near[0]!r}, but is taken for " if near else ""


def _split(rest: str, address: str) -> tuple[str, int]:
    """Host and port of ``"host"``, ``"host:8786"``, ``"[::1]:8786"``."""
    host, port = rest, ""
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        host = host if bracket else ""
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, port = rest.split(":")
    number = int(port or PORT) if port.isascii() and (port.isdecimal() or not port) else -1
    if not host or any(c in host for c in "/ @[]") or not 0 <= number <= 65535:
        raise UsageError(f"{address!r} is no address of a scheduler; write HOST:PORT, such as tls://node1:{PORT}")
    return host, number


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, reached without a network."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_files(directory: str) -> dict[str, str]:
    """The files of :data:`FILES` in a directory.

    Raises:
        UsageError, FileAccessError: one is missing, cannot be read or is none, they do not belong together, have expired, or
            others than its owner may read the private key.
    """
    if not directory:
        raise UsageError("--tls needs the name of a directory of keys, which `ptxkit cluster keys DIRECTORY` writes")
    found = {}
    for kind, name in FILES.items():
        path = Path(directory) / name
        try:
            with path.open("rb"):
                pass
            if kind == "key" and stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UsageError(f"others may read the private key {path}; run: chmod 600 {path}")
        except OSError as error:
            raise refused(path, error, "read") from None
        found[kind] = str(path.absolute())
    _check_keys(found)
    return found


def _check_keys(files: Mapping[str, str]) -> None:
    """Raise UsageError where files of keys cannot be used, or not now: TLS would only say that there is no connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(files["ca"])
    except ssl.SSLError:
        raise UsageError(f"{files['ca']} has no certificate; {NEW_KEYS}") from None
    try:
        context.load_cert_chain(files["cert"], files["key"], password=_no_password)
    except ssl.SSLError as error:
        both = f"{files['cert']} and {files['key']}"
        why = "do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "are no certificate and private key"
        raise UsageError(f"{both} {why}; {NEW_KEYS}") from None
    for kind in ("ca", "cert"):
        _check_dates(files[kind])


def _check_dates(file: str) -> None:
    """Raise UsageError for a certificate that is not valid now: TLS says so to whoever connects, not to who presents it."""
    if find_spec("cryptography") is None:
        return
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(Path(file).read_bytes())
    except ValueError:  # TLS, which accepted it, may accept more than this package
        return
    now = datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise UsageError(f"{file} expired on {last:%Y-%m-%d %H:%M} UTC; {NEW_KEYS}")
    if now < first:
        raise UsageError(f"{file} is valid from {first:%Y-%m-%d %H:%M} UTC on, which is later than the clock of this machine")


def _no_password() -> str:
    """Stands for the terminal, where a key with a password would be asked for."""
    return ""


def write_keys(directory: str) -> dict[str, str]:
    """Write a new certificate and its private key, which scheduler, workers and clients of one cluster share.

    The certificate is its own authority. It is valid for a year (``Security.temporary`` of Dask).

    Returns:
        See :func:`key_files`.

    Raises:
        UsageError, FileAccessError: the directory has such files, or cannot be written.
        UnavailableError: a package is missing.
    """
    check_installed()
    if find_spec("cryptography") is None:
        raise UnavailableError("keys are made by the package cryptography: pip install 'ptxkit[cluster]'")
    from distributed import Security

    made = Security.temporary()
    texts = {"ca": made.tls_ca_file, "cert": made.tls_scheduler_cert, "key": made.tls_scheduler_key}
    folder = Path(directory)
    if not directory:
        raise UsageError("keys are written to a directory; give its name")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{directory} is no directory; keys are three files in one")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = [name for name in FILES.values() if (folder / name).exists()]
        if present:
            raise UsageError(f"{folder / present[0]} exists; take another directory, or delete the old keys")
    except OSError as error:
        raise refused(directory, error) from None
    write_new({folder / name: texts[kind] for kind, name in FILES.items()}, mode=0o600)
    return key_files(directory)
