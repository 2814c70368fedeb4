"""Headless Chromium over its debugging pipe, with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 30.0


def find() -> str | None:
    """The first Chromium there is on the path."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A page in a browser, and what its console said."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._rest = b""
        self._last_id = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requested: list[str] = []

    def attach(self) -> None:
        """Open a page, and listen to what it logs and loads."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result."""
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._requests, json.dumps(request).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def open(self, path: Path, *, width: int = 1440, dark: bool = False) -> None:
        """Load a file and wait until its scripts have run."""
        self.resize(width)
        value = "dark" if dark else "light"
        feature = {"name": "prefers-color-scheme", "value": value}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        """Change the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run(
            "new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"
        )

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def centre(self, selector: str) -> tuple[float, float]:
        """Where the middle of an element is in the window, after scrolling to it."""
        element = f"document.querySelector({selector!r})"
        self.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        x, y = self.run(
            "(b => [b.x + b.width / 2, b.y + b.height / 2])"
            f"({element}.getBoundingClientRect())"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event: ``Moved``, ``Pressed``, ``Released`` or ``Wheel``."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Press the middle of an element."""
        x, y = self.centre(selector)
        self.mouse("Moved", x, y)
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save a picture of the page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{what['type']}: {what['args']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {what['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{what['entry']['level']}: {what['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(what["request"]["url"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], TIMEOUT_S)
            assert ready, "chromium does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "chromium ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser that keeps its files in a folder, with one page open."""
    program = find()
    assert program is not None
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()
    command = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]
    actions = [
        (os.POSIX_SPAWN_DUP2, theirs_in, 3),
        (os.POSIX_SPAWN_DUP2, theirs_out, 4),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    pid = os.posix_spawn(program, command, environment, file_actions=actions)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Browser(ours_out, ours_in)
        page.attach()
        yield page
        page._session = None
        with suppress(AssertionError, OSError):
            page.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        _end(pid)


def _pipe() -> tuple[int, int]:
    """Two ends well above 3 and 4, where Chromium expects its own."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _end(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
