# SPDX-License-Identifier: Apache-2.0
"""The page: what it is made of, and, where there is a Chromium, what it does."""

import base64
import hashlib
import json
import re
import unittest

from chromium import Tab, browser, find_chromium
from http_case import MODEL, HttpCase, metric, wait_until
from served import served

CHROMIUM = find_chromium()
TURNS = "document.querySelectorAll('#talk > li')"
LAST = "[...document.querySelectorAll('#talk > li.assistant')].at(-1)"
DONE = f"{LAST}?.querySelector('.note') && document.getElementById('stop').disabled"
TOKENS = f"[...{LAST}.querySelectorAll('[role=option]')].map(one => one.textContent)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MOST_ANSWERS = 40  # whether a step has room for guesses, the clock says
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def hashed(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


class Page(HttpCase):
    def test_it_is_one_file_that_its_policy_allows(self):
        reply = self.ask("/")
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.headers["Content-Type"], "text/html; charset=utf-8")
        policy = dict(part.strip().split(" ", 1)
                      for part in reply.headers["Content-Security-Policy"].split(";"))
        (style,) = re.findall(r"<style>(.*?)</style>", reply.text, re.S)
        (script,) = re.findall(r"<script>(.*?)</script>", reply.text, re.S)
        self.assertEqual(policy, {
            "default-src": "'none'", "style-src": hashed(style), "script-src": hashed(script),
            "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'",
            "frame-ancestors": "'none'", "require-trusted-types-for": "'script'",
            "trusted-types": "'none'"})
        self.assertEqual(reply.headers["X-Frame-Options"], "DENY")
        self.assertEqual(reply.headers["Referrer-Policy"], "no-referrer")
        self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(self.ask("/", method="HEAD").body, b"")
        self.assertEqual(self.ask("/", {}).status, 405)

    def test_it_names_no_other_host_and_runs_no_text(self):
        text = self.ask("/").text
        self.assertNotRegex(text, r"(?i)https?:|//[a-z0-9-]+\.|@import|url\(|<link|<img|<iframe")
        self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser")
        self.assertNotRegex(text, r"\beval\b|Function\(|setTimeout\(['\"`]|javascript:")
        self.assertNotRegex(text, r"(?i)<[^>]+\s(?:on[a-z]+|style)\s*=")
        self.assertNotRegex(text, r"localStorage|sessionStorage|indexedDB|cookie|location|history")
        self.assertNotIn("@js@", text)
        ids = re.findall(r"\bid=\"([^\"]+)\"", text)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertLessEqual(set(re.findall(r" for=\"([^\"]+)\"", text)), set(ids))
        self.assertLessEqual(set(re.findall(r"\$\('([^']+)'\)", text)), set(ids))

    def test_it_is_open_and_no_place_of_another_name(self):
        self.assertEqual(self.ask("/", headers={"Host": "evil.example"}).status, 403)
        with served(MODEL, "--api-key", "long-enough-key") as server:
            self.assertEqual(server.ask("/").status, 200)
            self.assertEqual(server.ask("/props").status, 401)

    def test_the_account_tells_bytes_and_special_tokens(self):
        reply = self.ask("/v1/completions", {
            "prompt": "The", "max_tokens": 60, "account": True, "stream": True,
            "structured_outputs": {"choice": ["a \U0001f9ec b"]}})
        told = [one for event in reply.events() for choice in event["choices"]
                for one in choice.get("account", ())]
        raw = b"".join(bytes(one["bytes"]) if "bytes" in one else one["token"].encode()
                       for one in told if not one.get("special"))
        self.assertEqual(raw.decode(), "a \U0001f9ec b")
        self.assertTrue(any("bytes" in one for one in told))
        for one in told:
            self.assertEqual("bytes" in one, "\ufffd" in one["token"])


class DraftedTokens(unittest.TestCase):
    def test_positions_of_right_guesses_are_told(self):
        text = "One two three four five six. " * 6 + "One two three"
        body = {"prompt": text, "max_tokens": 80, "temperature": 0, "account": True,
                "ignore_eos": True}
        with served(MODEL, "--speculate", "suffix", "--metrics") as server:
            seen = {False: 0, True: 0}
            for i in range(MOST_ANSWERS):
                stream = i % 2 == 1
                reply = server.ask("/v1/completions", {**body, "stream": stream})
                events = reply.events() if stream else [reply.json]
                choices = [choice for event in events for choice in event["choices"]]
                drafted = [at for one in choices for at in one.get("drafted_positions", ())]
                places = [one["position"] for each in choices for one in each.get("account", ())]
                self.assertEqual(len(places), 80)
                self.assertEqual(places, sorted(set(places)))
                self.assertEqual(len(drafted), len(set(drafted)))
                self.assertLessEqual(set(drafted), set(places))
                seen[stream] += len(drafted)
                self.assertTrue(wait_until(
                    lambda: metric(server, "accepted_tokens_total") == sum(seen.values())), seen)
                if all(seen.values()):
                    break
            self.assertTrue(all(seen.values()), seen)
        with served(MODEL) as server:
            self.assertNotIn("drafted_positions", server.ask("/v1/completions", body).text)


@unittest.skipIf(CHROMIUM is None, "there is no Chromium")
class PageInChromium(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.running = browser(CHROMIUM)
        cls.browser = cls.running.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.running.__exit__(None, None, None)
        super().tearDownClass()

    def open(self, server=None, **size):
        self.browser.events.clear()
        url = (server or self.server).url
        tab = Tab(self.browser, url + "/", **size)
        self.addCleanup(lambda: self.browser.call("Target.closeTarget", targetId=tab.target))
        tab.wait("!document.getElementById('server').textContent.startsWith('Asking')")
        return tab

    def set(self, tab, **fields):
        for name, value in fields.items():
            tab.value(f"document.getElementById('{name}').value = {json.dumps(str(value))};"
                      f"document.getElementById('{name}').dispatchEvent(new Event('change'))")

    def say(self, tab, text, waits=True):
        tab.type("#say", text)
        tab.click("#send")
        if waits:
            tab.wait(DONE)

    def check_quiet(self, tab, server=None):
        url = (server or self.server).url
        self.assertEqual(tab.complaints(), [])
        self.assertEqual([one for one in tab.asked() if not one.startswith(url + "/")], [])

    def test_an_answer_comes_token_by_token_and_tells_its_account(self):
        tab = self.open()
        self.set(tab, temperature=0, limit=300)
        tab.value("window.counts = []; new MutationObserver(() => counts.push("
                  "document.querySelectorAll('#talk [role=option]').length))"
                  ".observe(document.getElementById('talk'), {childList: true, subtree: true})||0")
        self.say(tab, "Tell me of the king.")
        tokens = tab.value(TOKENS)
        self.assertGreater(len(tokens), 10)
        self.assertTrue(tab.value("document.getElementById('status').textContent")
                        .startswith("Answer: "))
        steps = set(tab.value("counts"))
        self.assertGreater(len(steps), 3, "the answer came at once")
        reply = self.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me of the king."}], "temperature": 0,
            "max_tokens": 300, "account": True}).json
        told = reply["choices"][0]["account"]
        self.assertEqual("".join(tokens), "".join(one["token"] for one in told))
        tab.click("#talk li.assistant [role=option]:nth-child(3)")
        for at, move in ((2, None), (3, ("ArrowRight", 39)), (2, ("ArrowLeft", 37)),
                         (len(told) - 1, ("End", 35)), (0, ("Home", 36)), (0, ("ArrowLeft", 37))):
            if move:
                tab.press(*move)
            self.check_account(tab, told[at])
        tab.press("Escape", 27)
        self.assertEqual(tab.value("document.querySelectorAll('[aria-selected=true]').length"), 0)
        note = tab.value(f"{LAST}.querySelector('.note').textContent")
        self.assertRegex(note, r"\d+ of \d+ prompt tokens came from the cache\. First token after "
                               r"[\d.]+ s, then [\d.]+ tokens/s\.")
        self.say(tab, "And then?")
        note = tab.value(f"{LAST}.querySelector('.note').textContent")
        self.assertGreater(int(re.search(r"(\d+) of \d+ prompt tokens", note)[1]), 0)
        self.check_quiet(tab)

    def check_account(self, tab, told):
        account = tab.value("document.getElementById('account').innerText")
        self.assertIn(f"{told['position']}, token {told['id']}", account)
        self.assertIn(f"{told['entropy']:.3f} nats", account)
        strip = tab.value("[...document.querySelectorAll('#strip li')].map(one => one.title)")
        self.assertEqual(strip, [f"layer {layer}: expert {expert}, weight {weight:.3f}"
                                 for layer, expert, weight in told["experts"]])
        rows = tab.value("document.querySelectorAll('#alternatives tbody tr').length")
        self.assertIn(rows, (len(told["alternatives"]), len(told["alternatives"]) + 1))
        chosen = "document.querySelectorAll('#talk [aria-selected=true]')"
        self.assertEqual(tab.value(f"{chosen}.length"), 1)
        self.assertEqual(
            tab.value(f"{chosen}[0].id"),
            tab.value(f"{LAST}.querySelector('.text').getAttribute('aria-activedescendant')"))

    def test_hostile_text_stays_text(self):
        tab = self.open()
        self.set(tab, kind="choice", form=HOSTILE, limit=200)
        self.say(tab, HOSTILE)
        self.assertEqual("".join(tab.value(TOKENS)), HOSTILE)
        self.assertEqual(tab.value(f"{TURNS}[0].querySelector('.text').textContent"), HOSTILE)
        tab.click("#talk li.assistant [role=option]")
        self.assertIn("removed", tab.value("document.getElementById('removed').textContent"))
        self.assertEqual(tab.value("document.querySelectorAll('img, #talk script').length"), 0)
        self.assertTrue(tab.value("document.title").startswith("Vitrine"))
        self.check_quiet(tab)

    def test_guesses_that_were_right_are_marked(self):
        with served(MODEL, "--speculate", "suffix") as server:
            tab = self.open(server)
            self.set(tab, limit=80, temperature=0)
            for _ in range(MOST_ANSWERS):
                self.say(tab, "One two three four five six. " * 6 + "One two three")
                marked = tab.value(f"{LAST}.querySelectorAll('.drafted').length")
                if marked:
                    break
                tab.click("#clear")
            self.assertGreater(marked, 0)
            self.assertIn(f"{marked} of 80 tokens were guessed ahead.",
                          tab.value(f"{LAST}.querySelector('.note').textContent"))

    def test_characters_of_several_tokens_become_whole(self):
        tab = self.open()
        self.set(tab, kind="choice", form="a \U0001f9ec b")
        self.say(tab, "Hi")
        self.assertEqual("".join(tab.value(TOKENS)), "a \U0001f9ec b")
        self.check_quiet(tab)

    def test_stop_retry_and_clear(self):
        tab = self.open()
        self.set(tab, limit=1800, temperature=2)
        self.set(tab, kind="json", form='{"type": "string", "minLength": 3000}')
        self.say(tab, "Write.", waits=False)
        tab.wait("document.querySelectorAll('#talk [role=option]').length > 3")
        tab.click("#stop")
        tab.wait(DONE)
        self.assertIn("You stopped", tab.value(f"{LAST}.querySelector('.note').textContent"))
        self.set(tab, kind="choice", form="yes")
        tab.click("#retry")
        tab.wait(DONE)
        self.assertEqual(tab.value(f"{TURNS}.length"), 2)
        self.assertEqual("".join(tab.value(TOKENS)), "yes")
        tab.click("#clear")
        self.assertEqual(tab.value(f"{TURNS}.length"), 0)
        self.check_quiet(tab)

    def test_errors_are_shown_as_they_are_told(self):
        tab = self.open()
        self.set(tab, kind="json", form='{"type": "nothing"}')
        self.say(tab, "Hi")
        told = self.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Hi"}],
            "structured_outputs": {"json": {"type": "nothing"}}})
        alert = tab.value("document.querySelector('[role=alert]').textContent")
        self.assertEqual(alert, f"{told.status}: {told.json['error']['message']}")
        self.set(tab, kind="choice", form="yes")
        self.say(tab, "Again")
        asked = [json.loads(one["request"]["postData"])["messages"]
                 for one in tab.of("Network.requestWillBeSent") if one["request"]["method"] == "POST"]
        self.assertEqual(asked, [[{"role": "user", "content": "Hi"}],
                                 [{"role": "user", "content": "Again"}]])
        self.set(tab, kind="json", form="{")
        self.say(tab, "Hi", waits=False)
        self.assertIn("cannot be read", tab.wait(
            "document.querySelector('#ask > [role=alert]')?.textContent"))

    def test_a_narrow_window_has_room_for_it(self):
        tab = self.open(width=360, height=740)
        self.set(tab, limit=500, kind="choice", form="x" * 300 + HOSTILE)
        self.say(tab, "y" * 300)
        tab.click("#talk li.assistant [role=option]")
        tab.value("document.getElementById('settings').open = true")
        self.assertEqual(tab.value(OVERFLOW), 0)
        self.check_quiet(tab)

    def test_a_key_is_kept_in_memory_alone(self):
        with served(MODEL, "--api-key", "long-enough-key") as server:
            tab = self.open(server)
            self.assertIn("401", tab.value("document.getElementById('server').textContent"))
            self.set(tab, key="long-enough-key")
            # The model has no template here, so a text is continued.
            tab.wait("document.getElementById('server').textContent.includes('no chat template')")
            self.set(tab, limit=5)
            self.say(tab, "Once upon a time")
            self.assertEqual(len(tab.value(TOKENS)), 5)
            self.assertEqual([url for url in tab.asked() if "long-enough" in url], [])
            self.assertEqual(tab.value("localStorage.length + sessionStorage.length +"
                                       "document.cookie.length"), 0)

    def test_a_server_without_records_answers_without_them(self):
        with served(MODEL, "--audit-mode", "none", "--speculate", "suffix") as server:
            tab = self.open(server)
            self.set(tab, limit=5)
            self.say(tab, "Once upon a time")
            self.assertNotEqual(tab.value(f"{LAST}.querySelector('.text').textContent"), "")
            self.assertFalse(tab.value("document.getElementById('accounts').checked"))
