# SPDX-License-Identifier: Apache-2.0
"""vitrine audit export --html: the page of a run."""

import base64
import datetime
import decimal
import hashlib
import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import subprocess

from tool import MODEL, PROMPT, TRACE, AuditCase

# What would end the script's element, steer a terminal or turn the direction of what follows.
HOSTILE = "</script><script>alert(1)</script><!--\u202e\u2066\x1b[31m\x07"
WORDS = {"token", "surprise", "nats", "entropy", "logit", "expert", "weight", "rounding",
         "specialist"}
# Enough of a document for the page's script; @PAGE@ is the script, and @RUN@ the run's data.
DOCUMENT = r"""
class Node {
  constructor(tag) { Object.assign(this, {tag, parts: [], attributes: {}, style: {}, className: ''}); }
  append(...parts) {
    for (const part of parts) part.tag === '#' ? this.parts.push(...part.parts) : this.parts.push(part);
  }
  replaceChildren(...parts) { this.parts = parts; }
  get textContent() { return this.parts.map(p => p instanceof Node ? p.textContent : String(p)).join(''); }
  set textContent(text) { this.parts = [text]; }
  get classList() { return {add: name => { this.className += ' ' + name; }}; }
  get firstChild() { return this.parts[0]; }
  get nextElementSibling() { return new Node('dd'); }
  get previousElementSibling() { return new Node('p'); }
  setAttribute(name, value) { this.attributes[name] = value; }
  replaceWith() {}
  addEventListener() {}
  all(test) { return this.parts.filter(p => p instanceof Node).flatMap(p => [...(test(p) ? [p] : []), ...p.all(test)]); }
}
const nodes = new Map();
const document = {
  getElementById: id => { if (!nodes.has(id)) nodes.set(id, new Node(id)); return nodes.get(id); },
  createElement: tag => new Node(tag),
  createDocumentFragment: () => new Node('#'),
  querySelectorAll: () => [],
};
const requestAnimationFrame = act => act(), setTimeout = act => act(), addEventListener = () => {};
document.getElementById('data').textContent = @RUN@;
document.getElementById('colour').value = 'surprise';
@PAGE@
const texts = cells => cells.map(cell => cell.textContent);
console.log(JSON.stringify({
  verdict: $('verdict').textContent,
  facts: $('facts').all(n => n.tag === 'div').map(n => n.parts.map(p => p.textContent)),
  groups: $('text').all(n => n.attributes.role === 'group').map(n => [n.attributes['aria-label'],
    n.className, n.parts[0].textContent, n.all(p => p.attributes.role === 'option').length]),
  options: $('text').all(n => n.attributes.role === 'option').map(n => [n.textContent, n.className]),
  account: $('account').textContent,
  legend: texts($('legend').parts),
  rows: $('rows').parts.map(n => texts(n.parts)),
}));
"""


def fixed(value, digits):
    """As JavaScript's toFixed rounds: a half away from zero."""
    return str(decimal.Decimal(value).quantize(decimal.Decimal(10) ** -digits,
                                               decimal.ROUND_HALF_UP))


class Markup(html.parser.HTMLParser):
    """What is in a page without its script: elements, and texts by the last id or tag."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.headings, self.texts, self.at = [], [], {}, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.at = dict(attributes).get("id", self.at)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_data(self, data):
        self.texts[self.at] = self.texts.get(self.at, "") + data


class RunPage(AuditCase):
    def page(self, name, code=0):
        result = self.run_tool("audit", "export", name, "--html", "--out", "run.html")
        self.assertEqual(result.returncode, code, result.stderr)
        page = (self.folder / "run.html").read_text()
        self.assertEqual(len(re.findall("<script", page, re.I)), 2, "a log brought a script")
        self.assertEqual(len(re.findall("</script", page, re.I)), 2, "a log ended a script")
        self.assertNotIn("<!--", page)
        for word in ("http://", "https://", "src=", "@import", "url(", "innerHTML", "outerHTML",
                     "insertAdjacent", "document.write", "@css@", "@js@", "@RUN@"):
            self.assertNotIn(word, page)
        return page

    def page_data(self, page):
        start = page.index('id="data">') + len('id="data">')
        return json.loads(page[start:page.index("</script>", start)])

    def facts(self, name, code=0):
        return {fact["label"]: fact for fact in self.page_data(self.page(name, code))["facts"]}

    def shown(self, page):
        """What the page's script makes of its data; none where there is no node."""
        if shutil.which("node") is None:
            return None
        script = page[page.rindex("<script>") + 8:page.rindex("</script>")]
        # What no browser would run: a module, as a page, has no `return` outside its functions.
        (self.folder / "page.mjs").write_text(
            DOCUMENT.replace("@RUN@", json.dumps(json.dumps(self.page_data(page))))
            .replace("@PAGE@", script))
        result = subprocess.run(["node", "page.mjs"], cwd=self.folder, capture_output=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_page(self):
        prompt = "</script><script>alert(1)</script> & \\u003c"
        for name, more in (("run.vtr", ("--attribution",)), ("log.json", ())):
            self.succeed("generate", MODEL, "-p", prompt, "-n", 30, "--seed", 5,
                         "--ignore-end-of-text", "--audit", name, *more)
            page = self.page(name)
            self.assertEqual(self.succeed("audit", "export", name, "--html").stdout.decode(), page)
            data = self.page_data(page)
            tokens = data["tokens"]
            self.assertEqual("".join(token["text"] for token in tokens if not token["made"]), prompt)
            made = [token for token in tokens if token["made"]]
            self.assertEqual(len(made), 30)
            log = json.loads(self.succeed("audit", "export", name, "--json").stdout)
            records = [one for one in log["records"]
                       if one["prediction"] and one["prediction"]["generated"]]
            for token, record in zip(made, records):
                self.assertAlmostEqual(token["lp"], record["prediction"]["logprob"], delta=1e-3)
                self.assertEqual([[layer["layer"], layer["experts"]] for layer in record["layers"]],
                                 [[layer, [expert for expert, _ in routes]]
                                  for layer, routes in token["routes"]])
                self.assertEqual("sums" in token, bool(more))
            self.assertEqual(sum(map(sum, (uses for _, uses in data["experts"]))),
                             2 * 4 * len(log["records"]))

    def test_it_says_who_made_it_when_and_how(self):
        self.generate("run.vtr", "--seal", "key", "--trace-id", TRACE, "--temperature", "0.7")
        facts = self.facts("run.vtr")
        report = self.succeed_json("audit", "verify", "run.vtr", "--json")
        envelope = json.loads((self.folder / "run.vtr.manifest.json").read_text())
        manifest = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
        weights = hashlib.sha256((pathlib.Path(MODEL) / "model.safetensors").read_bytes()).hexdigest()
        self.assertEqual(facts["Model"]["text"], MODEL)
        self.assertIn(weights, facts["Its weights"]["text"])
        self.assertIn(["SHA-256 of tokenizer.json", hashlib.sha256(
            (pathlib.Path(MODEL) / "tokenizer.json").read_bytes()).hexdigest()],
            facts["Its weights"]["details"])
        self.assertEqual(facts["Engine"]["details"], [["its build", manifest["engine"]["build"]]])
        for label, key in (("Began", "started"), ("Ended", "closed")):
            at = datetime.datetime.fromisoformat(manifest["run"][key][:19])
            self.assertTrue(facts[label]["text"].startswith(f"{at:%-d %B %Y, %H:%M:%S} UTC, "),
                            facts[label])
        self.assertIn("the set number of tokens was reached", facts["Ended"]["text"])
        self.assertIn("temperature 0.7, top-k 40", facts["Options"]["text"])
        self.assertIn("seed 5", facts["Options"]["text"])
        self.assertIn("cpu with fused kernels", facts["Ran on"]["text"])
        self.assertIn("sealed by the holder of the key " + report["public_key"][:16],
                      facts["Seal"]["text"])
        self.assertIn(["public key (Ed25519)", report["public_key"]], facts["Seal"]["details"])
        self.assertTrue(facts["Complete"]["text"].startswith("yes; "))
        self.assertIn("40 tokens chosen", facts["Complete"]["text"])
        self.assertEqual(facts["Left out"]["text"], "nothing")
        self.assertIn(TRACE, facts["Trace"]["text"])
        self.generate("own.vtr", "--temperature", "0", tokens=2)
        facts = self.facts("own.vtr")
        self.assertIn("made for this record alone and thrown away", facts["Seal"]["text"])
        self.assertIn("most probable token was taken each time", facts["Options"]["text"])
        self.assertNotIn("Trace", facts)
        self.generate("log.json", tokens=2)
        facts = self.facts("log.json")
        self.assertIn("none: a JSON log is not sealed", facts["Seal"]["text"])
        self.assertIn("vitrine", facts["Engine"]["text"])
        self.assertIn("UTC", facts["Began"]["text"])
        log = json.loads((self.folder / "log.json").read_text())
        for key in ("started", "engine_build"):  # as logs from before had none
            del log[key]
        (self.folder / "older.json").write_text(json.dumps(log))
        facts = self.facts("older.json")
        for label in ("Engine", "Began"):
            self.assertIn("not told", facts[label]["text"])

    def test_it_says_first_what_it_is_worth(self):
        self.generate("run.vtr", "--audit-text", tokens=8)
        log = (self.folder / "run.vtr").read_bytes()
        (self.folder / "cut.vtr").write_bytes(log[:-40])
        broken = bytearray(log)
        broken[len(log) // 2] ^= 4
        (self.folder / "bad.vtr").write_bytes(broken)
        self.generate("log.json", tokens=8)
        inconsistent = json.loads((self.folder / "log.json").read_text())
        inconsistent["counts"]["generated"] = 3
        (self.folder / "false.json").write_text(json.dumps(inconsistent))
        self.succeed("audit", "keygen", "reader")
        self.generate("closed.vtr", "--encrypt-for", "reader.pub", tokens=8)
        for columns, words in (("routing", "do not tell which experts worked. "),
                               ("tokens,text", "do not tell which tokens were read, their text. "),
                               ("prediction", "do not tell what was predicted and how probably. "),
                               ("norms", "do not tell the strength of the signal between layers. "),
                               ("digests", "do not tell values that this page does not show. ")):
            self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", columns)
            verdict = self.page_data(self.page("less.vtr"))["verdict"]
            self.assertEqual(verdict["kind"], "partly")
            self.assertTrue(verdict["text"].startswith("Complete, but redacted: "), verdict)
            self.assertIn(words, verdict["text"])
            self.assertIn(words[:-2], self.facts("less.vtr")["Left out"]["text"])
        for name, kind, words, code in (
                ("run.vtr", "whole", "Complete: all ", 0),
                ("closed.vtr", "partly", "Complete, but encrypted: ", 0),
                ("log.json", "partly", "Not sealed: ", 0),
                ("false.json", "broken", "BROKEN: ", 0),
                ("cut.vtr", "broken", "NOT COMPLETE: ", 0),
                ("bad.vtr", "broken", "BROKEN: ", 2)):
            page = self.page(name, code)
            verdict = self.page_data(page)["verdict"]
            self.assertEqual(verdict["kind"], kind, name)
            self.assertTrue(verdict["text"].startswith(words), verdict)
            self.assertLess(page.index('id="verdict"'), page.index('id="facts"'))
            if shown := self.shown(page):
                self.assertEqual(shown["verdict"], verdict["text"])

    def test_prompt_and_answer_are_told_apart(self):
        self.succeed("generate", MODEL, "-p", "<|tales|>Once upon", "-n", 9, "--seed", 5,
                     "--ignore-end-of-text", "--audit", "run.vtr")
        page = self.page("run.vtr")
        data = self.page_data(page)
        special = [token["text"] for token in data["tokens"] if token.get("special")]
        self.assertIn("<|tales|>", special)
        self.assertTrue(all(re.fullmatch(r"<\|\w+\|>", text) for text in special), special)
        num_given = sum(not token["made"] for token in data["tokens"])
        self.assertEqual([(one["kind"], one["label"], one["first"], one["count"])
                          for one in data["segments"]],
                         [("Prompt", "Prompt", 0, num_given), ("Answer", "Answer", num_given, 9)])
        if shown := self.shown(page):
            self.assertEqual(shown["groups"], [
                ["Prompt", "prompt", "Prompt: given to the model", num_given],
                ["Answer", "answer", "Answer: chosen by the model, token by token", 9]])
            self.assertEqual([text for text, _ in shown["options"]],
                             [token["text"] for token in data["tokens"]])
            self.assertIn(["<|tales|>", "special"], shown["options"])
            self.assertEqual(shown["legend"][1:], ["100 %", "50 %", "10 %", "1 %", "0.1 % or less"])
        # Sequences have their origin, and what cannot be told is said to be so.
        self.generate("some.vtr", "--n-best", 2, tokens=4)
        segments = self.page_data(self.page("some.vtr"))["segments"]
        self.assertEqual([one["label"] for one in segments],
                         ["Prompt 1", "Prompt 2", "Answer 1", "Prompt 3", "Answer 2"])
        self.assertIn("goes on from sequence 1 at position", segments[1]["note"])
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "prediction")
        self.assertIn("Not told", [one["kind"] for one in
                                   self.page_data(self.page("less.vtr"))["segments"]])

    def test_its_words_are_explained(self):
        self.generate("run.vtr", tokens=2)
        page = self.page("run.vtr")
        markup = Markup(page)
        for name in WORDS:
            self.assertRegex(markup.texts[f"word-{name}"], r"\w+\s+\S.{40,}\.", name)
        ids = {attributes["id"] for _, attributes in markup.elements if "id" in attributes}
        for _, attributes in markup.elements:
            for key in ("aria-labelledby", "aria-describedby"):
                self.assertIn(attributes.get(key, "text"), ids)
            if attributes.get("href"):
                self.assertIn(attributes["href"].removeprefix("#"), ids)
        for name in re.findall(r"\bword\('(\w+)'", page):
            self.assertIn(name, WORDS)
        self.assertEqual(markup.headings[0], 1)
        for one, following in zip(markup.headings, markup.headings[1:]):
            self.assertLessEqual(following, one + 1)
        landmarks = [tag for tag, _ in markup.elements if tag in ("header", "main")]
        self.assertEqual(landmarks, ["header", "main"])
        # What people liked stays word by word.
        for sentence in ("took ' + (100 * removed).toFixed(2) + ' % of the probability away.",
                         "The model would have said “", "recorded arithmetic, not a reason"):
            self.assertIn(sentence, page)

    def test_every_chosen_token_is_printed(self):
        self.generate("run.vtr", "--attribution", tokens=250)
        page = self.page("run.vtr")
        self.assertIn(("section", "print"), [(tag, attributes.get("class")) for tag, attributes in
                                             Markup(page).elements if attributes.get("id") == "record"])
        for rule in (r"\n\.print \{ display: none; \}", r"@media print \{.*\n  \.print \{ display: block; \}",
                     r"@media print \{.*\n  \.screen, [^{]*\{ display: none; \}"):
            self.assertRegex(page, re.compile(rule, re.S))
        shown = self.shown(page)
        if shown is None:
            return
        made = [token for token in self.page_data(page)["tokens"] if token["made"]]
        self.assertEqual(len(shown["rows"]), 250)
        for row, token in zip(shown["rows"], made):
            text = token["text"].replace("\n", "⏎").replace(" ", "␣")
            self.assertEqual(row[:2], [str(token["position"]), f"“{text}”"])
            self.assertTrue(row[2].startswith(f"{fixed(100 * math.exp(token['lp']), 2)} % ("), row[2])
            for other, logprob in token["others"]:
                shown_other = other.replace("\n", "⏎").replace(" ", "␣")
                self.assertIn(f"“{shown_other}” {fixed(100 * math.exp(logprob), 2)} %", row[3])
            for layer, routes in token["routes"]:
                told = ", ".join(f"{expert} ({fixed(weight, 3)})" for expert, weight in routes)
                self.assertIn(f"layer {layer}: {told}", row[3])
            self.assertIn("recorded arithmetic, not a reason", row[3])
            self.assertEqual(len(re.findall(r"(attention|expert \d+|embedding|rounding) -?\d+\.\d{3} ",
                                            row[3])), len(token["sums"][0]["terms"]))

    def test_a_hostile_log(self):
        self.generate("log.json", tokens=3)
        log = json.loads((self.folder / "log.json").read_text())
        log["model"].update(path=HOSTILE, architecture=HOSTILE, sha256={HOSTILE: HOSTILE})
        log["runtime"].update(device=HOSTILE, kernels=HOSTILE, isa=HOSTILE,
                              options={HOSTILE: HOSTILE})
        log["audit"].update(mode=HOSTILE)
        log["sampler"] = {HOSTILE: HOSTILE, "temperature": HOSTILE}
        log["constraint"] = {HOSTILE: HOSTILE}
        log.update(trace_id=HOSTILE, stop_reason=HOSTILE)
        for record in log["records"]:
            record["text"] = record["piece"] = HOSTILE
        (self.folder / "hostile.json").write_text(json.dumps(log))
        name = HOSTILE.replace("/", "")
        os.symlink(MODEL, self.folder / name)
        self.succeed("generate", name, "-p", PROMPT, "-n", 3, "--ignore-end-of-text", "--audit",
                     "hostile.vtr")
        for log in ("hostile.json", "hostile.vtr"):
            page = self.page(log)
            data = self.page_data(page)
            said = json.dumps([data["facts"], data["verdict"]], ensure_ascii=False)
            self.assertIn("script>", said)
            self.assertNotRegex(said, "[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
            self.assertNotIn("\\u00", said)
            if (shown := self.shown(page)) and log.endswith(".json"):
                self.assertIn([HOSTILE, " turned"], shown["options"])
                printed = json.dumps(shown["rows"], ensure_ascii=False)
                self.assertIn("[U+202E][U+2066][U+001B][31m[U+0007]", printed)
