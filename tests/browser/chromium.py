"""Chromium without a window, driven by its DevTools protocol over two pipes: no port is open, no driver is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

_SECONDS = 60.0
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--password-store=basic"),
)


class Browser:
    """A browser with an empty profile, while its block runs. Args: `program`: Chromium's path."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._number, self._received = 0, b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        its_input, self._write = os.pipe()
        self._read, its_output = os.pipe()
        # Chromium reads from its file descriptor 3, and writes into 4. As root it has no sandbox.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [self._program, *_FLAGS, *root, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{its_input} 4>&{its_output}', "bash", *words],
            pass_fds=(its_input, its_output),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (RuntimeError, TimeoutError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol. Events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, event: str, session: str) -> None:
        """Until an event of this name has come, since the last call."""
        while not any(e.get("method") == event and e.get("sessionId") == session for e in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._received:
            readable, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 2**20) if readable else b""
            if not readable:
                raise TimeoutError(f"{self._program} has not answered for {_SECONDS:.0f} s")
            if not part:
                raise RuntimeError(f"{self._program} has ended with exit code {self._process.wait()}")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


class Tab:
    """A page that is shown.

    Args:
        browser: the browser.
        file: an HTML file.
        width, height: of the window, in CSS pixels; `scale`: how many points of a picture each of them is.
        dark: what the page is told of the user's preference.
    """

    def __init__(
        self, browser: Browser, file: Path, width: int, height: int = 800, dark: bool = False, scale: float = 1
    ) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        browser.events.clear()
        self._call("Page.navigate", url=file.resolve().as_uri())
        browser.wait_for("Page.loadEventFired", self._session)
        self._target, self._address = target, file.resolve().as_uri()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of its promise. Raises RuntimeError where it fails."""
        wanted = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        done = self._call("Runtime.evaluate", **wanted)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression[:200]}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and requests besides that for the page itself."""
        found = []
        for event in self._browser.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif method == "Log.entryAdded":
                found.append(str(parameters["entry"]))
            elif method == "Network.requestWillBeSent" and parameters["request"]["url"] != self._address:
                found.append(f"a request for {parameters['request']['url'][:200]}")
        return found

    def picture(self, file: Path, height: int | None = None) -> None:
        """Write a PNG of the page, whole or its first `height` pixels."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        done = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(done["data"]))

    def close(self) -> None:
        """End it."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)
