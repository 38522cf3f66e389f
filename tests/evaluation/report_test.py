# SPDX-License-Identifier: Apache-2.0
"""Opens the report's page in Chromium, where there is one: keyboard, contrast, names, no network.

    report_test.py VITRINE MODEL
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "http"), str(ROOT / "bench")]

from chromium import Tab, browser, find_chromium
from page_open import CONTRAST, FOCUSED, LEAST_CONTRAST, OVERFLOW, read_roles

TOOL, MODEL = (str(pathlib.Path(one).resolve()) for one in sys.argv[1:3])
CHROMIUM = find_chromium()
TASKS = ["--tasks", "cloze,grammar,prose,refusals"]
DAMAGE = ROOT / "bench" / "damage_model.py"
UNFOLD = "document.querySelectorAll('details').forEach(one => one.open = OPEN)||0"
# Finds what can be scrolled and is not reached by the tab key.
UNREACHED = """[...document.querySelectorAll('main *')].filter(one => one.tabIndex < 0
  && one.checkVisibility() && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX)
  && (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight))
  .map(one => one.tagName + ' ' + one.textContent.slice(0, 30))"""


@unittest.skipIf(CHROMIUM is None, "there is no Chromium")
class ReportInChromium(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        cls.evaluate("base", MODEL)
        for name, option in (("kv", ["--kv", "0,1"]), ("expert", ["--expert", "1,3,0"])):
            copy = cls.folder / f"{name}.model"
            subprocess.run([sys.executable, DAMAGE, MODEL, copy, *option], check=True,
                           capture_output=True)
            cls.evaluate(name, copy)
        cls.made = {name: cls.make(name, *command) for name, command in {
            "verdict": ["gate", "kv.eval", "--baseline-logs", "base.logs", "--candidate-logs",
                        "kv.logs"],
            "both": ["compare", "kv.eval", "expert.eval"]}.items()}
        cls.running = browser(CHROMIUM)
        cls.browser = cls.running.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.running.__exit__(None, None, None)
        cls.holder.cleanup()

    @classmethod
    def evaluate(cls, name, model):
        subprocess.run([TOOL, "eval", model, *TASKS, "--out", f"{name}.eval", "--audit",
                        f"{name}.logs", "--quiet"], cwd=cls.folder, check=True)

    @classmethod
    def make(cls, name, command, *options):
        page = cls.folder / f"{name}.html"
        told = subprocess.run([TOOL, command, "base.eval", *options, "--html", page],
                              cwd=cls.folder, capture_output=True, text=True)
        if not page.exists():
            raise AssertionError(told.stderr)
        return page

    def open(self, name, **size):
        self.browser.events.clear()
        tab = Tab(self.browser, self.made[name].as_uri(), **size)
        self.addCleanup(lambda: self.browser.call("Target.closeTarget", targetId=tab.target))
        return tab

    def check_quiet(self, tab):
        self.assertEqual(tab.complaints(), [])
        self.assertEqual([url for url in tab.asked() if not url.startswith(("file:", "data:"))], [])

    def walk(self, tab):
        """Returns what the tab key reaches, from the page's beginning, each with whether that is seen."""
        tab.value("document.activeElement.blur()||0")
        reached = []
        for _ in range(200):
            tab.press("Tab", 9)
            focused = tab.value(FOCUSED)
            if focused is None or reached and focused == reached[0]:
                break
            reached.append(focused)
        return reached

    def test_every_text_can_be_read(self):
        for name in self.made:
            tab = self.open(name)
            tab.value(UNFOLD.replace("OPEN", "true"))
            for scheme in ("light", "dark"):
                for width in (1280, 360):
                    tab.resize(width, 800)
                    tab.call("Emulation.setEmulatedMedia", media="screen",
                             features=[{"name": "prefers-color-scheme", "value": scheme}])
                    contrast, text, count = tab.value(CONTRAST)
                    self.assertGreater(count, 100)
                    self.assertGreaterEqual(contrast, LEAST_CONTRAST, (name, scheme, text))
                    self.assertEqual(tab.value(OVERFLOW), 0, (name, width))
                    self.assertEqual(tab.value(UNREACHED), [], (name, width))
            tab.call("Emulation.setEmulatedMedia", media="print", features=[])
            self.assertGreaterEqual(tab.value(CONTRAST)[0], LEAST_CONTRAST)
            self.check_quiet(tab)

    def test_the_keyboard_reaches_and_shows_everything(self):
        tab = self.open("both")
        closed = self.walk(tab)
        self.assertEqual([one for one, is_seen in closed if not is_seen], [])
        self.assertEqual(closed[0][0].split()[0], "a")
        tab.value(UNFOLD.replace("OPEN", "true"))
        self.assertGreater(len(self.walk(tab)), len(closed))
        tab.value(UNFOLD.replace("OPEN", "false"))
        wanted = tab.value("[...document.querySelectorAll('a, select, summary, [tabindex]')]"
                           ".filter(one => one.checkVisibility()).length")
        self.assertEqual(len(closed), wanted)

    def test_keys_open_flips_and_choose_candidates(self):
        tab = self.open("both")
        tab.value("document.querySelector('summary').focus()||0")
        for is_open in (True, False):
            tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter",
                     windowsVirtualKeyCode=13, text="\r")
            tab.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter",
                     windowsVirtualKeyCode=13)
            self.assertEqual(tab.value("document.querySelector('details').open"), is_open)
        said = "document.getElementById('verdict').textContent"
        self.assertTrue(tab.value(said).startswith("kv.eval beside base.eval: "))
        tab.value("document.querySelector('select').focus()||0")
        tab.press("ArrowDown", 40)
        self.assertTrue(tab.value(said).startswith("expert.eval beside base.eval: "))
        self.check_quiet(tab)

    def test_a_screen_reader_is_told_names(self):
        for name in self.made:
            tab = self.open(name)
            tab.value(UNFOLD.replace("OPEN", "true"))
            roles, problems = read_roles(tab.call("Accessibility.getFullAXTree")["nodes"])
            self.assertEqual(problems, [], name)
            self.assertLessEqual({"banner", "main", "region", "heading", "table", "image"},
                                 set(roles))

    def test_what_is_shown_is_what_was_found(self):
        tab = self.open("verdict")
        first = tab.value("document.querySelector('#parted .first').textContent")
        self.assertIn("the first place that stands out: layer 0: ", first)
        rows = tab.value("[...document.querySelectorAll('#rules tbody tr')]"
                         ".map(one => one.cells[0].textContent + ': ' + one.cells[1].textContent)")
        self.assertIn("divergence: refused", rows)
        self.assertEqual(tab.value("document.getElementById('verdict').className"), "refused")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
