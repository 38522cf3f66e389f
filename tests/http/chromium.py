# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over DevTools' protocol through a pair of pipes."""

import base64
import contextlib
import glob
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
KEPT = "~/.cache/ms-playwright/*/*/*{}"
CALL_SECONDS = 60


def find_chromium():
    """The program that CHROMIUM names, one on PATH, or one that Playwright keeps; None: nothing."""
    if named := os.environ.get("CHROMIUM"):
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    kept = [path for end in ("headless_shell", "headless-shell", "/chrome")
            for path in sorted(glob.glob(os.path.expanduser(KEPT.format(end))))]
    return kept[-1] if kept else None


class Browser:
    """Messages of the protocol, each of which ends with a zero byte."""

    def __init__(self, program, folder):
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()

        def pipes():  # 3 and 4 are what --remote-debugging-pipe takes
            first, second = os.dup(to_read), os.dup(from_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking",
             "--remote-debugging-pipe", "--window-size=1280,900", f"--user-data-dir={folder}"],
            close_fds=False, preexec_fn=pipes, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.next_id, self.buffer, self.events = 0, b"", []

    def receive(self):
        while b"\0" not in self.buffer:
            if not select.select([self.source], [], [], CALL_SECONDS)[0]:
                raise RuntimeError(f"Chromium said nothing for {CALL_SECONDS} s")
            piece = os.read(self.source, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") != self.next_id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def end(self):
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.source)


class Tab:
    """A page that has been opened, what it asked the network for, and what it complained of."""

    def __init__(self, browser, address, width=1280, height=900):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target,
                                    flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.value(expression):
                return value
            time.sleep(0.02)
        raise AssertionError(f"{expression} did not come true within {seconds} s; the page says: "
                             + self.value("document.body.innerText"))

    def press(self, key, code):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code)

    def click(self, selector):
        """Clicks with the mouse in the middle of an element."""
        x, y = self.value(
            "(() => { const at = document.querySelector(%s); at.scrollIntoView({block: 'center'});"
            " const box = at.getClientRects()[0];"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()" % json.dumps(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector, text):
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.value(f"document.querySelector({json.dumps(selector)}).select?.()")
        self.call("Input.insertText", text=text)

    def of(self, method):
        return [one["params"] for one in self.browser.events
                if one.get("method") == method and one.get("sessionId") == self.session]

    def asked(self):
        return [one["request"]["url"] for one in self.of("Network.requestWillBeSent")]

    def complaints(self):
        """Errors of the console, exceptions, and issues, such as those of a policy."""
        logged = [one["entry"] for one in self.of("Log.entryAdded")
                  if one["entry"]["level"] == "error"]
        said = [one for one in self.of("Runtime.consoleAPICalled") if one["type"] == "error"]
        issues = [one["issue"] for one in self.of("Audits.issueAdded")]
        return logged + said + issues + self.of("Runtime.exceptionThrown")

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(program):
    """A Chromium with a profile of its own, which goes with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        running = Browser(program, folder)
        try:
            yield running
        finally:
            running.end()
