"""Options of the server: default sampling, the time a request may take, https, a Unix socket, and its log."""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from lcspec.commands.serving import check_tls
from lcspec.errors import LcspecError, SamplingError, UsageError
from lcspec.server.lifecycle import leave, listen
from lcspec.server.settings import ServerSettings
from tests.server.process import WAIT, Process, run
from tests.server.running import HELLO, background

pytestmark = pytest.mark.server


def say(url: str, **body: Any) -> str:
    asked = {"messages": HELLO, "max_tokens": 12, "ignore_eos": True} | body
    got = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=WAIT)
    assert got.status_code == 200, got.text
    return str(got.json()["choices"][0]["message"]["content"])


def test_sampling_of_requests_that_say_nothing(tiny_model: Path) -> None:
    with background(tiny_model, sampling={"temperature": 0.0, "top_k": 3}) as greedy:
        usual = say(greedy.url)
        assert usual == say(greedy.url, temperature=0)
        assert {say(greedy.url, temperature=5, top_k=0, seed=seed) for seed in range(3)} != {usual}
        shown = httpx.get(f"{greedy.url}/props").json()["default_generation_settings"]["params"]
        assert shown["temperature"] == 0 and shown["top_k"] == 3
    with background(tiny_model, sampling={"temperature": 1.5, "seed": 7}) as seeded:
        assert say(seeded.url) == say(seeded.url) == say(seeded.url, seed=7) != say(seeded.url, seed=8)
    with pytest.raises(SamplingError, match="top_p"):
        ServerSettings(sampling={"top_p": 2.0})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends(tiny_model: Path, stream: bool) -> None:
    with background(tiny_model, ctx=4096, request_seconds=1.0) as server:
        body = {"messages": HELLO, "max_tokens": 4000, "ignore_eos": True, "stream": stream}
        got = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT)
        if stream:
            assert got.status_code == 200 and '"timeout"' in got.text.strip().split("\n")[-1]
            assert got.text.count("data: ") > 2  # what was there is not lost
        else:
            assert got.status_code == 504 and "--timeout" in got.json()["error"]["message"]
        assert say(server.url, max_tokens=2)


def test_the_log_has_a_line_for_every_answer(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("lcspec.server")
    caplog.set_level(logging.INFO, logger.name)
    if not logger.propagate:  # another test has set up the server's own log
        logger.addHandler(caplog.handler)
    try:
        with background(tiny_model) as server:
            asked = {"messages": HELLO, "max_tokens": 5, "ignore_eos": True}
            for stream in (False, True):
                headers = {"x-request-id": f"mine-{stream}"}
                url = f"{server.url}/v1/chat/completions"
                got = httpx.post(url, json=asked | {"stream": stream}, headers=headers, timeout=WAIT)
                assert got.headers["x-request-id"] == f"mine-{stream}"
            other = httpx.get(f"{server.url}/v1/models", headers={"x-request-id": "no\tplain id"})
            assert re.fullmatch("req_[0-9a-f]{16}", other.headers["x-request-id"])
    finally:
        logger.removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records]
    for stream in (False, True):
        (line,) = [line for line in lines if line.startswith(f"mine-{stream} ")]
        assert re.fullmatch(
            rf"mine-{stream} POST /v1/chat/completions 200 \d+\.\d+ s, \d+ \+ 5 tokens(, \d+\.\d\d times plain)?", line
        )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key; beside them that of the authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    made.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    return folder / "cert.pem", folder / "key.pem"


def test_https(tiny_model: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with background(tiny_model, tls_cert=cert, tls_key=key) as server:
        url = f"https://localhost:{server.port}"
        with httpx.Client(
            verify=ssl.create_default_context(cafile=str(cert.with_name("authority.pem"))), timeout=WAIT
        ) as client:
            body = {"messages": HELLO, "max_tokens": 4, "stream": True}
            assert client.post(f"{url}/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{server.port}/health")


def test_certificates_that_cannot_be_used(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    check_tls(cert, key)
    check_tls(None, None)
    (tmp_path / "bad.pem").write_text("no certificate")
    for bad, said in (((None, key), "needs --tls-cert"), ((tmp_path / "none.pem", key), "no file")):
        with pytest.raises(UsageError, match=said):
            check_tls(*bad)
    for pair in ((tmp_path / "bad.pem", key), (cert, tmp_path / "bad.pem"), (cert, None)):
        with pytest.raises(UsageError, match="cannot be used"):
            check_tls(*pair)


@pytest.fixture()
def uds_server(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[Process, Path]]:
    path = tmp_path / "lcspec.sock"
    running = Process(str(tiny_model), "--uds", str(path), "--threads", "1", "--ctx", "256", "--speculate", "off")
    try:
        yield running, path
    finally:
        running.kill()


def test_a_unix_socket(uds_server: tuple[Process, Path], tiny_model: Path) -> None:
    running, path = uds_server
    assert path.is_socket() and path.stat().st_mode & 0o777 == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=WAIT) as client:
        assert client.get("http://any-name/health").json()["status"] == "ok"
        body = {"messages": HELLO, "max_tokens": 4, "stream": True}
        assert client.post("http://x/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")
        again = run(str(tiny_model), "--host", f"unix:{path}")
        assert again.returncode == 1 and "another server" in again.stderr
    running.process.terminate()
    assert running.wait() == 0
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "old.sock"
    old = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old.bind(str(path))
    old.close()
    sock = listen(f"unix:{path}", 0)
    leave(sock, f"unix:{path}")
    assert not path.exists()
    with pytest.raises(LcspecError, match="cannot listen"):
        listen(f"unix:{tmp_path}/no/such/folder/x.sock", 0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LcspecError, match="cannot listen"):
        listen(f"unix:{tmp_path}/file", 0)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(UsageError, match="is a directory: name a file in it"):
        listen(f"unix:{tmp_path}", 0)
