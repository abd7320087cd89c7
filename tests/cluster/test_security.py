"""Addresses and keys: nothing leaves the machine without TLS unless the user asks for it."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ptxkit.cluster import start
from ptxkit.cluster.calls import NO_SCHEDULER, probe
from ptxkit.cluster.connection import connected
from ptxkit.cluster.security import FILES, endpoint, is_loopback, key_files, worker_command, write_keys
from ptxkit.cluster.start import serve_workers
from ptxkit.errors import UnavailableError, UsageError


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("127.0.0.1:5", "tcp://127.0.0.1:5"),
        ("localhost", "tcp://localhost:8786"),
        ("tcp://[::1]:99", "tcp://[::1]:99"),
    ],
)
def test_this_machine_needs_no_tls(address, meant):
    assert endpoint(address).address == meant


@pytest.mark.parametrize(
    "address", ["node1:8786", "tcp://10.0.0.1", "tcp://[fe80::1]:8786", "0.0.0.0:1", "localhost.evil"]
)
def test_another_machine_without_tls_is_refused(address):
    with pytest.raises(UsageError, match="--insecure"):
        endpoint(address)
    assert endpoint(address, insecure=True).keys is None


NO_ADDRESSES = ["", "a:b", "tcp://", "http://node1:1", "a:99999", "a:１８", "tcp://a/b:1", "user@node1:3", "[::1", "local"]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match="address"):
        endpoint(address, insecure=True)


@pytest.mark.parametrize("host", ["127.9.9.9", "::1", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


def test_tls_needs_keys():
    with pytest.raises(UsageError, match="--tls DIRECTORY"):
        endpoint("tls://node1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two directories of keys."""
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="it makes the keys")
    folders = [tmp_path_factory.mktemp("keys") / name for name in ("one", "another")]
    for folder in folders:
        write_keys(str(folder))
    return folders


@pytest.fixture
def keys(made, tmp_path):
    """A copy of the first of them."""
    return shutil.copytree(made[0], tmp_path / "keys")


def test_keys_make_an_address_encrypted(keys):
    assert endpoint("node1", str(keys)).address == "tls://node1:8786"
    with pytest.raises(UsageError, match="not for tcp://node1"):
        endpoint("tcp://node1", str(keys))


def test_a_missing_key_is_named(keys):
    (keys / "cert.pem").unlink()
    with pytest.raises(UsageError, match=r"cert\.pem: No such file"):
        key_files(str(keys))


def test_a_key_that_others_may_read_is_refused(keys):
    (keys / "key.pem").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        key_files(str(keys))


@pytest.mark.parametrize("text", ["", "hello"])
@pytest.mark.parametrize("name", FILES.values())
def test_a_file_that_is_no_key_is_named(keys, name, text):
    (keys / name).write_text(text)
    with pytest.raises(UsageError, match=rf"{name}.* (has|are) no certificate"):
        key_files(str(keys))


def test_keys_of_different_clusters_do_not_belong_together(keys, made):
    shutil.copy(made[1] / "key.pem", keys / "key.pem")
    with pytest.raises(UsageError, match=r"cert\.pem and .*key\.pem do not belong together"):
        key_files(str(keys))


@pytest.mark.parametrize(
    ("name", "days", "said"), [("cert.pem", (-9, -2), r"cert.pem expired on 2"), ("ca.pem", (2, 9), r"ca.pem is valid from 2")]
)
def test_keys_that_are_not_valid_now_are_refused_before_anything_is_started(keys, name, days, said):
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization

    private = serialization.load_pem_private_key((keys / "key.pem").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    first, last = (now + datetime.timedelta(day) for day in days)
    whose = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = x509.CertificateBuilder(whose, whose, private.public_key(), x509.random_serial_number(), first, last)
    (keys / name).write_bytes(made.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    with pytest.raises(UsageError, match=said):
        endpoint("tls://localhost", str(keys))


def test_the_pages_of_dask_answer_nothing_without_bokeh(keys, monkeypatch):
    """They have no keys: every user of the machine could read names of tasks, logs and call stacks there."""
    psutil = pytest.importorskip("psutil", reason="Dask needs it")
    monkeypatch.setattr(start, "has_dashboard", lambda: False)
    codes = []

    def look(ports):
        for page in [f"{port}/{name}" for port in ports for name in ("json/identity.json", "info/main/workers.html", "health")]:
            try:
                codes.append(urllib.request.urlopen(f"http://127.0.0.1:{page}", timeout=10).status)
            except urllib.error.HTTPError as refused:
                codes.append(refused.code)
        os.kill(os.getpid(), signal.SIGTERM)

    def say(line):
        listening = {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        own = int(line.rpartition(":")[2])
        threading.Thread(target=look, args=(listening - before - {own},)).start()

    before = {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert start.serve_scheduler(endpoint("tls://127.0.0.1:0", str(keys)), say) == signal.SIGTERM
    assert set(codes) <= {404}


@pytest.mark.parametrize(
    ("address", "tls", "words"),
    [
        ("localhost", False, "tcp://localhost:8786"),
        ("node1", False, "tcp://node1:8786 --insecure"),
        ("node1:1", True, "tls://node1:1 --tls {keys}"),
    ],
)
def test_the_command_that_starts_workers_has_what_they_need(keys, address, tls, words):
    directory = str(keys) if tls else None
    at = endpoint(address, directory, insecure=True)
    assert worker_command(at, directory) == f"ptxkit cluster worker {words.format(keys=keys)}"


def test_an_empty_name_of_a_directory_of_keys_is_said():
    with pytest.raises(UsageError, match="--tls needs the name"):
        key_files("")


def test_an_address_without_a_port_is_for_a_scheduler_only():
    assert endpoint("localhost:0").address == "tcp://localhost:0"
    with pytest.raises(UsageError, match="has no port"), connected("localhost:0", None, False):
        pass


def test_written_keys_are_private_and_never_replaced(keys):
    found = key_files(str(keys))
    assert "PRIVATE KEY" in Path(found["key"]).read_text()
    assert {path.name: path.stat().st_mode & 0o777 for path in keys.iterdir()} == dict.fromkeys(FILES.values(), 0o600)
    with pytest.raises(UsageError, match=r"ca\.pem exists"):
        write_keys(str(keys))


def test_a_misspelt_local_is_said():
    with pytest.raises(UsageError, match="locl is not 'local', but is taken for another machine"):
        endpoint("locl")


@pytest.mark.parametrize(("name", "said"), [("", "give its name"), ("file", "is no directory")])
def test_keys_need_a_directory(tmp_path, monkeypatch, name, said):
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="it makes the keys")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=said):
        write_keys(name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@contextmanager
def server(greeting=b""):
    """A server that is no scheduler: it greets, and says nothing else."""
    pytest.importorskip("distributed", reason="clusters need Dask")
    peers = []

    def serve():
        with suppress(OSError):  # the socket was closed
            while True:
                peers.append(listening.accept()[0])
                peers[-1].sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for peer in peers:
        peer.close()


GREETINGS = [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", bytes(4096), b"\xff" * 4096]


@pytest.mark.parametrize("greeting", GREETINGS, ids=["http", "ssh", "zeros", "ones"])
def test_a_server_of_another_protocol_is_no_scheduler(greeting):
    """Such text is read as the length of a message that is larger than the memory, or as a message that is none."""
    with server(greeting) as port:
        with pytest.raises(UnavailableError, match=NO_SCHEDULER), connected(f"127.0.0.1:{port}", None, False):
            pass
        with pytest.raises(UnavailableError, match=f"no worker can be started for .*: {NO_SCHEDULER}"):
            serve_workers(endpoint(f"127.0.0.1:{port}"), [], 1, None, print)


def test_another_server_of_dask_is_no_scheduler():
    """The address of a worker, for instance."""
    Server = pytest.importorskip("distributed.core", reason="clusters need Dask").Server

    async def ask():
        async with Server({"identity": lambda **_: {"type": "Worker"}}) as other:
            await other.listen("tcp://127.0.0.1:0")
            await probe(other.address, {}, 10)

    with pytest.raises(ConnectionError, match=NO_SCHEDULER):
        asyncio.run(ask())


def test_a_worker_that_waits_for_its_scheduler_can_be_ended(monkeypatch):
    """Of a scheduler that is silent, or not started yet, the worker says that it waits, and for how long."""
    monkeypatch.setattr(start, "PROBE_S", 0.2)
    said = []

    def say(line):
        said.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    with server() as port:
        assert serve_workers(endpoint(f"127.0.0.1:{port}"), [], 1, None, say) == signal.SIGTERM
    assert said == [f"waiting up to 60 s for the scheduler tcp://127.0.0.1:{port}: no answer in time"]


def test_a_worker_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(start, "PROBE_S", 0.2)
    monkeypatch.setattr(start, "GONE_S", 0.1)
    with server() as port, pytest.raises(UnavailableError, match="no worker can be started for .*: no answer in time"):
        serve_workers(endpoint(f"127.0.0.1:{port}"), [], 1, None, print)


def test_a_port_at_which_nothing_listens_is_said(monkeypatch):
    """Dask says that there was no answer in time where its last attempt was cut short."""
    pytest.importorskip("distributed", reason="clusters need Dask")
    monkeypatch.setattr(start, "PROBE_S", 0.2)
    monkeypatch.setattr(start, "GONE_S", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(UnavailableError, match="connection refused"):
            serve_workers(endpoint(f"127.0.0.1:{port}"), [], 1, None, print)


def test_a_wrong_configuration_of_dask_is_said(tmp_path):
    pytest.importorskip("distributed", reason="clusters need Dask")
    (tmp_path / "wrong.yaml").write_text("distributed: [1\n")
    env = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    words = [sys.executable, "-m", "ptxkit", "cluster", "status", "tcp://127.0.0.1:1"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 3
    assert re.fullmatch(r"error: Dask cannot be used: A dask config file at '.*wrong.yaml' is malformed.*\n", done.stderr)
