"""`serve`, and `capture_outside` of what it serves."""

import socket
import subprocess
import threading

import pytest

import profiling
from profiling._capture import recorders, request
from profiling._capture.request import capture_outside
from tests.profiling import captured


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


def from_outside(step, **arguments):
    """Capture in a thread while this one runs steps."""
    found = []

    def client():
        try:
            found.append(capture_outside(**arguments))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    while thread.is_alive():
        captured.loop(step, 1)
    thread.join()
    return found[0]


@pytest.mark.parametrize("runtime", ["torch_xla", "jax"])
def test_a_capture_from_outside(runtime, port, tmp_path):
    step = captured.compiled_step(runtime)
    captured.loop(step, 1)
    with profiling.serve(port, runtime=runtime) as server:
        assert repr(server) == f"ProfileServer(port={port}, {runtime})"
        paths = [
            from_outside(step, port=port, seconds=0.5, to=tmp_path / folder)
            for folder in ("a", "b")
        ]
    for folder, path in zip(("a", "b"), paths, strict=True):
        assert path.parent == tmp_path / folder / "plugins" / "profile"
        found = captured.profile(path)
        assert captured.names(found)["train"] >= 1
        assert captured.operations(found)
        (file,) = path.glob("*.xplane.pb")
        assert b"CPU 0 (no TPU" in file.read_bytes()  # for TensorBoard's tables
    assert repr(server) == f"ProfileServer(port={port}, closed)"


def child_says(monkeypatch, *lines, code=0, log=""):
    """Have the client's process end so."""
    out = "\n".join(lines).encode()
    ended = subprocess.CompletedProcess([], code, out, log.encode())
    monkeypatch.setattr(request.subprocess, "run", lambda *_, **__: ended)


@pytest.mark.parametrize(
    ("lines", "code", "error", "message"),
    [
        (['{"error": "No trace event was collected"}'], 0, ValueError, "gave no prof"),
        (['{"error": "full moon"}', "noise"], 0, RuntimeError, "failed: full moon"),
        ([], 0, RuntimeError, r"ended \(0\): the log"),
        (["half"], -11, RuntimeError, r"ended \(-11\): the log"),
    ],
    ids=["no answer", "its words", "silent", "killed"],
)
def test_how_the_client_may_end(
    lines, code, error, message, port, tmp_path, monkeypatch
):
    child_says(monkeypatch, *lines, code=code, log="the log")
    with socket.create_server(("localhost", port)):
        with pytest.raises(error, match=message):
            capture_outside(port=port, to=tmp_path)


def test_a_client_that_does_not_end(port, tmp_path, monkeypatch):
    def run(*arguments, timeout, **options):
        raise subprocess.TimeoutExpired("client", timeout)

    monkeypatch.setattr(request.subprocess, "run", run)
    with socket.create_server(("localhost", port)):
        with pytest.raises(ValueError, match="did not finish its profile within 90 s"):
            capture_outside(port=port, to=tmp_path)


def test_a_profile_that_is_written_elsewhere(port, tmp_path, monkeypatch):
    monkeypatch.setattr(request, "_collect", lambda *arguments: None)
    with socket.create_server(("localhost", port)):
        with pytest.raises(
            ValueError, match="the program writes it on its own machine"
        ):
            capture_outside(port=port, to=tmp_path)


def test_a_capture_from_outside_during_one_inside(port, tmp_path):
    step = captured.compiled_step("torch_xla")
    captured.loop(step, 1)
    with profiling.serve(port), profiling.capture(tmp_path / "inside") as capture:
        error = from_outside(step, port=port, seconds=0.1, to=tmp_path / "outside")
    assert isinstance(error, ValueError) and "another capture was going on" in str(
        error
    )
    assert captured.operations(captured.profile(capture.path))


def test_nobody_listens(port, tmp_path):
    with pytest.raises(
        ValueError, match=rf"nothing answers on localhost:{port} \(Conn"
    ):
        capture_outside(port=port, to=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 0}, r"port 0; 1\.\.65535 are ports"),
        ({"port": 9012, "seconds": 0}, "0 seconds; more than 0 and at most 600"),
        ({"port": 9012, "seconds": 1e9}, "1e[+]09 seconds; more than 0"),
        ({"port": 9012, "host": " ,"}, "names no machine"),
    ],
    ids=["port", "no seconds", "too many", "no host"],
)
def test_arguments_that_make_no_sense(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        capture_outside(**arguments, to=tmp_path)


def test_a_port_that_is_none():
    for port in ("9012", 9012.0, True):
        with pytest.raises(TypeError, match="an int is needed"):
            profiling.serve(port)
    for port in (0, 65536):
        with pytest.raises(ValueError, match=r"1\.\.65535 are ports"):
            profiling.serve(port)


def test_a_port_that_is_taken(port):
    with socket.create_server(("", port)):
        with pytest.raises(ValueError, match="something else listens on it"):
            profiling.serve(port)


def test_a_port_that_may_not_be_opened(port, monkeypatch):
    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ValueError, match=r"cannot be opened \(Permission denied"):
        profiling.serve(port)


def test_one_server_at_a_time(port):
    with profiling.serve(port) as server:
        with pytest.raises(RuntimeError, match=f"serves on port {port} already"):
            profiling.serve(free_port())
    server.close()
    with profiling.serve(port):  # the port is free again
        pass


def test_a_runtime_that_is_not_there(port, monkeypatch):
    with pytest.raises(ValueError, match=r"runtime='tpu'; this process has imported"):
        profiling.serve(port, runtime="tpu")
    monkeypatch.setattr(recorders.sys, "modules", {})
    with pytest.raises(RuntimeError, match="neither jax nor torch_xla is imported"):
        profiling.serve(port)
