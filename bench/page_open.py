# SPDX-License-Identifier: Apache-2.0
"""How fast Chromium opens a run's page, and whether it works there.

    bench/page_open.py RUN.html [--tabs N] [--screenshots FOLDER]
    bench/page_open.py --make VITRINE MODEL [--tokens N] [--tabs N] [--screenshots FOLDER]

`--make` makes the page of a run of N (2,000) tokens first.
Needs Debian's `chromium`. Prints the time from the request to the load event and to the frame
painted after it, as medians over N (9) fresh tabs, and fails where the page asks the network for
anything, where an arrow key does not move the selection, or where its colours are the same in
light and dark.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

AFTER_LOAD = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
  const entry = performance.getEntriesByType('navigation')[0];
  done([entry.loadEventEnd, performance.now()]);
})))"""
SELECTED = "document.querySelectorAll('#text [aria-selected=true]')[0]?.id ?? ''"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


class Browser:
    """Chromium's DevTools protocol over a pair of pipes: messages end with a zero byte."""

    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()

        def pipes():  # 3 and 4 are what --remote-debugging-pipe takes
            first, second = os.dup(to_read), os.dup(from_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        program = shutil.which("chromium")
        if program is None:
            sys.exit("chromium is not here: apt-get install chromium")
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1280,900",
             f"--user-data-dir={folder}"], close_fds=False, preexec_fn=pipes,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.next_id, self.buffer, self.events = 0, b"", []

    def receive(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.source, 1 << 20)
            if not piece:
                sys.exit("chromium ended")
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
                sys.exit(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def wait_for(self, method, session):
        while not any(e.get("method") == method and e.get("sessionId") == session
                      for e in self.events):
            self.events.append(self.receive())

    def value(self, session, expression):
        answer = self.call("Runtime.evaluate", session, expression=expression,
                           awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            sys.exit(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"]["value"]

    def open(self, address):
        """A fresh tab that has loaded the page: its target and session."""
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network"):
            self.call(f"{domain}.enable", session)
        self.call("Page.navigate", session, url=address)
        self.wait_for("Page.loadEventFired", session)
        asked = [e["params"]["request"]["url"] for e in self.events
                 if e.get("method") == "Network.requestWillBeSent"]
        outside = [url for url in asked if not url.startswith(("file:", "data:"))]
        if outside:
            sys.exit(f"the page asks the network for {outside}")
        return target, session

    def close(self):
        self.call("Browser.close")
        self.process.wait()


def make_page(program, model, tokens, folder):
    log, page = folder / "run.vtr", folder / "run.html"
    subprocess.run([program, "generate", model, "-p", "Once upon a time", "-n", str(tokens), "-s",
                    "7", "--ignore-end-of-text", "--temperature", "1", "--attribution", "--audit",
                    log, "--audit-text"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([program, "audit", "export", log, "--html", "--out", page], check=True)
    return page


def check(browser, session, screenshots):
    browser.value(session, "document.getElementById('text').focus()||0")
    moved = set()
    for _ in range(3):
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", session, type=kind, key="ArrowRight",
                         code="ArrowRight", windowsVirtualKeyCode=39)
        moved.add(browser.value(session, SELECTED))
    if len(moved) != 3 or "" in moved:
        sys.exit(f"three arrow keys selected {sorted(moved)}, expected three tokens")
    colours = set()
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", session,
                     features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.add(browser.value(session, BACKGROUND))
        if screenshots:
            picture = browser.call("Page.captureScreenshot", session, format="png")["data"]
            (screenshots / f"page_{scheme}.png").write_bytes(base64.b64decode(picture))
    if len(colours) != 2:
        sys.exit(f"light and dark have one background, {colours}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=pathlib.Path, nargs="?")
    parser.add_argument("--make", nargs=2, metavar=("VITRINE", "MODEL"))
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--tabs", type=int, default=9)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if (options.page is None) == (options.make is None):
        parser.error("expected a page, or --make")
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = pathlib.Path(temporary)
        page = options.page or make_page(*options.make, options.tokens, folder)
        browser = Browser(folder / "profile")
        address = page.resolve().as_uri()
        times = []
        for _ in range(options.tabs):
            target, session = browser.open(address)
            times.append(browser.value(session, AFTER_LOAD))
            browser.call("Target.closeTarget", targetId=target)
        session = browser.open(address)[1]
        count = browser.value(session, "document.querySelectorAll('#text [role]').length")
        check(browser, session, options.screenshots)
        browser.close()
        loaded, painted = (sorted(t[i] / 1000 for t in times) for i in (0, 1))
        print(f"{count:,} tokens, {page.stat().st_size:,} bytes, {len(times)} tabs: loaded in "
              f"{statistics.median(loaded):.2f} s ({loaded[0]:.2f} to {loaded[-1]:.2f}), painted in "
              f"{statistics.median(painted):.2f} s ({painted[0]:.2f} to {painted[-1]:.2f})")
        print("no request to the network; arrow keys move; light and dark differ")


main()
