# SPDX-License-Identifier: Apache-2.0
"""How fast Chromium opens a run's page, and whether everyone can read it there and on paper.

    bench/page_open.py RUN.html [--tabs N] [--screenshots FOLDER]
    bench/page_open.py --make VITRINE MODEL [--tokens N] [--tabs N] [--screenshots FOLDER]

`--make` makes the page of a run of N (2,000) tokens first.
Needs Debian's `chromium`, and `poppler-utils` for what is printed. Prints the time from the request
to the load event, to the frame painted after it and to the last row of the table for print, as
medians over N (9) fresh tabs, and fails where
- the page asks the network for anything,
- it is wider than the window at 360, 820 or 1280 pixels,
- a text's contrast with what is behind it is under 4.5, in light, dark or print and with every
  choice of colours,
- an arrow key does not move the selection, or what is selected is not announced,
- the tab key does not reach the text, or what it reaches shows no focus,
- headings skip a level, or something with a role that needs a name has none,
- the PDF that is printed lacks a chosen token, its probability or its experts.
`--screenshots` also writes pictures at the three widths in light and dark, and the PDF.
"""

import argparse
import base64
import decimal
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

WIDTHS = {360: 740, 820: 1100, 1280: 900}  # in pixels, with the height of a window
LEAST_CONTRAST = 4.5  # WCAG 2.2, success criterion 1.4.3
NAMED_ROLES = {"button", "combobox", "DisclosureTriangle", "link", "listbox", "option", "region"}
AFTER_LOAD = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
  const entry = performance.getEntriesByType('navigation')[0];
  done([entry.loadEventEnd, performance.now()]);
})))"""
# When the table that is printed has its rows, of which there are COUNT.
TABLE = """new Promise(done => (function look() {
  if (document.getElementById('rows').childElementCount >= COUNT) done(performance.now());
  else setTimeout(look, 5);
})())"""
SELECTED = "document.querySelectorAll('#text [aria-selected=true]')[0]?.id ?? ''"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED = """(() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const name = at.id || at.tagName.toLowerCase() + ' ' + at.textContent.trim().slice(0, 20);
  return at === document.body ? null :
    [name, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0];
})()"""
# The lowest contrast of a visible text, that text, and how many texts were looked at. Colours come
# as rgb(), rgba() or color(srgb …).
CONTRAST = """(() => {
  const parse = text => {
    const parts = text.match(/[0-9.e-]+/g).map(Number), scale = text.startsWith('color') ? 1 : 255;
    return [parts[0] / scale, parts[1] / scale, parts[2] / scale, parts.length > 3 ? parts[3] : 1];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const luminance = colour => colour.map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const known = new Map([[null, [1, 1, 1]]]);  // what is behind an element's text
  const ground = node => {
    if (!known.has(node)) {
      known.set(node, over(parse(getComputedStyle(node).backgroundColor), ground(node.parentElement)));
    }
    return known.get(node);
  };
  let least = [100, '', 0], count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({visibilityProperty: true})) continue;
    if (node.closest('script, option, .spoken, .skip')) continue;
    ++count;
    const below = ground(node), ink = over(parse(getComputedStyle(node).color), below);
    const [light, dark] = [luminance(below), luminance(ink)].sort((a, b) => b - a);
    const contrast = (light + .05) / (dark + .05);
    if (contrast < least[0]) least = [contrast, text.data.trim().slice(0, 40)];
  }
  return [least[0], least[1], count];
})()"""


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
                    log, "--audit-text", "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([program, "audit", "export", log, "--html", "--out", page], check=True)
    return page


def press(browser, session, key, code):
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", session, type=kind, key=key, code=key,
                     windowsVirtualKeyCode=code)


def set_window(browser, session, width, scheme):
    browser.call("Emulation.setDeviceMetricsOverride", session, width=width, height=WIDTHS[width],
                 deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", session, media="screen",
                 features=[{"name": "prefers-color-scheme", "value": scheme}])


def picture(browser, session, path):
    data = browser.call("Page.captureScreenshot", session, format="png")["data"]
    path.write_bytes(base64.b64decode(data))


def check_keys(browser, session):
    """Arrow keys select, and what they select is announced; the tab key shows where it is."""
    browser.value(session, "document.getElementById('text').focus()||0")
    moved = set()
    for _ in range(3):
        press(browser, session, "ArrowRight", 39)
        announced = browser.value(session, "document.getElementById('text')"
                                           ".getAttribute('aria-activedescendant')")
        said = browser.value(session, "document.querySelector('[role=status]').textContent")
        if announced != browser.value(session, SELECTED) or not said:
            sys.exit(f"{announced} is the active one and {said!r} is said, not what is selected")
        moved.add(announced)
    if len(moved) != 3 or "" in moved:
        sys.exit(f"three arrow keys selected {sorted(moved)}, expected three tokens")
    browser.value(session, "document.querySelector('.skip').focus()||0")
    reached = []
    for _ in range(100):
        press(browser, session, "Tab", 9)
        focused = browser.value(session, FOCUSED)
        if focused is None or focused[0] in reached:
            break
        reached.append(focused[0])
        if not focused[1]:
            sys.exit(f"the focus on {focused[0]} cannot be seen")
    if missing := {"colour", "text", "token"} - set(reached):
        sys.exit(f"the tab key reaches {reached}, not {sorted(missing)}")
    return len(reached)


def read_roles(nodes):
    """Returns how often each role stands in an accessibility tree, and what is wrong with names and
    with the order of headings."""
    level, roles, problems = 0, {}, []
    for node in nodes:
        if node["ignored"]:
            continue
        role, name = node["role"]["value"], node.get("name", {}).get("value", "").strip()
        if role == "group" and not name:  # a details element
            continue
        roles[role] = roles.get(role, 0) + 1
        properties = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
        is_to_name = role in NAMED_ROLES or role != "RootWebArea" and properties.get("focusable")
        if is_to_name and not name:
            problems.append(f"a {role} has no name: {properties}")
        if role == "heading":
            own = properties["level"]
            if own > level + 1:
                problems.append(f"the heading {name!r} is of level {own} and follows one of level "
                                f"{level}")
            level = own
    return roles, problems


def check_roles(browser, session):
    """Looks for landmarks, headings in order, and names: what a screen reader is told."""
    roles, problems = read_roles(browser.call("Accessibility.getFullAXTree", session)["nodes"])
    if problems:
        sys.exit(problems[0])
    for role in ("banner", "main", "listbox", "group", "option", "heading", "status"):
        if role not in roles:
            sys.exit(f"the page has no {role} for a screen reader, but {sorted(roles)}")
    return roles


def check_contrast(browser, session, where):
    """The lowest contrast with every choice of colours, and with everything unfolded."""
    browser.value(session, "document.querySelectorAll('details').forEach(one => one.open = true)||0")
    chosen = "document.getElementById('colour')"
    least = 100
    for i in range(browser.value(session, f"{chosen}.options.length")):
        if browser.value(session, f"{chosen}.options[{i}].disabled"):
            continue
        browser.value(session, f"{chosen}.selectedIndex = {i}; {chosen}.dispatchEvent(new Event("
                               "'change'))")
        contrast, text, count = browser.value(session, CONTRAST)
        if contrast < LEAST_CONTRAST or count == 0:
            sys.exit(f"{where}, colours {i}: {text!r} has a contrast of {contrast:.2f}, expected "
                     f"{LEAST_CONTRAST} ({count} texts)")
        least = min(least, contrast)
    browser.value(session, "document.querySelectorAll('details').forEach(one => one.open = false)||0")
    browser.value(session, f"{chosen}.selectedIndex = 0; {chosen}.dispatchEvent(new Event('change'))")
    return least


def page_data(page):
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start:text.index("</script>", start)])


def spelt(text):
    """A token's text as the page writes it, without white space."""
    for character, sign in (("\n", "⏎"), (" ", "␣")):
        text = text.replace(character, sign)
    text = re.sub("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
                  lambda one: f"[U+{ord(one[0]):04X}]", text)
    return re.sub(r"\s", "", text) or "␀"


def fixed(value, digits):
    """As JavaScript's toFixed rounds: a half away from zero."""
    return str(decimal.Decimal(value).quantize(decimal.Decimal(10) ** -digits,
                                               decimal.ROUND_HALF_UP))


def check_print(browser, session, page, folder):
    """The PDF has every chosen token's account. Answers how many there are, on how many pages."""
    if shutil.which("pdftotext") is None:
        sys.exit("pdftotext is not here: apt-get install poppler-utils")
    data = browser.call("Page.printToPDF", session, printBackground=True, preferCSSPageSize=True,
                        paperWidth=8.27, paperHeight=11.69)["data"]
    path = folder / "page.pdf"
    path.write_bytes(base64.b64decode(data))
    text = subprocess.run(["pdftotext", "-raw", path, "-"], check=True,
                          stdout=subprocess.PIPE).stdout.decode()
    num_pages, text, at, num_tokens = text.count("\f"), re.sub(r"\s", "", text), 0, 0
    for token in page_data(page)["tokens"]:
        if not token["made"]:
            continue
        num_tokens += 1
        row = f"{token['position']}“{spelt(token['text'])}”{fixed(100 * math.exp(token['lp']), 2)}%"
        if token.get("part"):
            row = f"{token['position']}therestofthecharacterbeforeit"
        wanted = [row]
        if token["routes"] and token["routes"][0][1][0][0] >= 0:
            layer, routes = token["routes"][0]
            wanted.append(f"layer{layer}:{routes[0][0]}({fixed(routes[0][1], 3)})")
        for one in wanted:
            found = text.find(one, at)
            if found < 0:
                sys.exit(f"the PDF lacks {one!r} where position {token['position']} is to stand: "
                         f"{text[at:at + 200]!r}")
            at = found + len(one)
    return num_tokens, num_pages


def check(browser, session, page, folder, screenshots):
    """Everything but the time. Answers a line that says what was seen."""
    contrasts, grounds = [], set()
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            set_window(browser, session, width, scheme)
            browser.value(session, "scrollTo(0, 0)||0")
            if (over := browser.value(session, OVERFLOW)) > 0:
                sys.exit(f"at {width} pixels the page is {over} pixels too wide")
            if screenshots:
                picture(browser, session, screenshots / f"page_{width}_{scheme}.png")
        contrasts.append(check_contrast(browser, session, scheme))
        grounds.add(browser.value(session, "getComputedStyle(document.body).backgroundColor"))
    if len(grounds) != 2:
        sys.exit(f"light and dark have one background, {grounds}")
    roles = check_roles(browser, session)
    stops = check_keys(browser, session)
    browser.value(session, "document.getElementById('text').focus()||0")
    for width in WIDTHS if screenshots else ():
        set_window(browser, session, width, "light")
        browser.value(session, "scrollTo(0, document.getElementById('reading').offsetTop - 20)||0")
        press(browser, session, "ArrowRight", 39)
        picture(browser, session, screenshots / f"page_{width}_token.png")
    browser.call("Emulation.clearDeviceMetricsOverride", session)
    browser.call("Emulation.setEmulatedMedia", session, media="print", features=[])
    contrasts.append(check_contrast(browser, session, "print"))
    browser.call("Emulation.setEmulatedMedia", session, media="", features=[])
    num_tokens, num_pages = check_print(browser, session, page, screenshots or folder)
    return (f"no request to the network; no overflow at {', '.join(map(str, WIDTHS))} pixels; "
            f"lowest contrast {min(contrasts):.2f}; {stops} stops of the tab key, "
            f"{roles['heading']} headings; the PDF has all {num_tokens:,} chosen tokens on {num_pages:,} "
            "pages")


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
        tokens = page_data(page)["tokens"]
        if not tokens:
            sys.exit("the page has no token; expected that of a log whose records can be read")
        table = TABLE.replace("COUNT", str(sum(token["made"] for token in tokens)))
        browser = Browser(folder / "profile")
        address = page.resolve().as_uri()
        times = []
        for _ in range(options.tabs):
            target, session = browser.open(address)
            times.append(browser.value(session, AFTER_LOAD) + [browser.value(session, table)])
            browser.call("Target.closeTarget", targetId=target)
        session = browser.open(address)[1]
        seen = check(browser, session, page, folder, options.screenshots)
        browser.close()
        print(f"{len(tokens):,} tokens, {page.stat().st_size:,} bytes, {len(times)} tabs: " + ", ".join(
            f"{what} in {statistics.median(of) / 1000:.2f} s ({min(of) / 1000:.2f} to "
            f"{max(of) / 1000:.2f})"
            for what, of in zip(("loaded", "painted", "table for print"), zip(*times))))
        print(seen)


if __name__ == "__main__":
    main()
