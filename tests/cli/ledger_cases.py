# SPDX-License-Identifier: Apache-2.0
"""vitrine ledger: bookings recomputed from a log's JSON export with exact fractions."""

import csv
import io
import json
import math
import os
import pathlib
import subprocess
import time
from fractions import Fraction

import numpy as np
from tool import MODEL, PROMPT, TIMEOUT, VITRINE, AuditCase, file_size_limit

UNITS = 10**9
GROUPS = {"low": range(0, 3), "high": range(3, 8)}
RATES = {"currency": "EUR", "payer": "clinic", "server": "operator",
         "settlement": {"token_in": 3, "token_out": 11, "mebibyte": 100, "second": 777},
         "basis": "gate_weight",
         "royalties": [{"group": name, "account": f"{name}-house", "token": rate,
                        "experts": [{"layers": [0, 3], "experts": [group[0], group[-1]]}]}
                       for (name, group), rate in zip(GROUPS.items(), (120, 77))]}


def units_of(weights):
    """docs/ledger.md: a token's shares."""
    total = 0.0
    for weight in weights:
        total += weight
    exact = [weight / total * 1e9 for weight in weights]
    units = [math.floor(value) for value in exact]
    order = sorted(range(len(units)), key=lambda i: -(exact[i] - units[i]))
    for i in order[:UNITS - sum(units)]:
        units[i] += 1
    return units


def round_together(exact):
    """docs/ledger.md: amounts that sum to their sum rounded, halves up."""
    amounts = [math.floor(value) for value in exact]
    total = math.floor(sum(exact) + Fraction(1, 2))
    order = sorted(range(len(exact)), key=lambda i: -(exact[i] - amounts[i]))
    for i in order[:total - sum(amounts)]:
        amounts[i] += 1
    return amounts


def gate_weights(record):
    for layer in record["layers"]:
        weights = [float(np.float32(weight)) for weight in layer["weights"]]
        total = 0.0
        for weight in weights:
            total += weight
        for expert, weight in zip(layer["experts"], weights):
            yield expert, weight / total


def attributions(record):
    for term in record["prediction"]["attribution"]["terms"]:
        if term["part"] == "expert":
            yield term["expert"], max(0.0, float(np.float32(term["value"])))


class Ledger(AuditCase):
    def write_rates(self, name="rates.json", **changes):
        (self.folder / name).write_text(json.dumps(RATES | changes))
        return name

    def book(self, what, *runs, rates="rates.json", ledger="ledger.sqlite", more=()):
        return self.succeed("ledger", what, *runs, "--rates", rates, "--out", ledger,
                            *more).stdout.decode()

    def lines(self, ledger="ledger.sqlite", kind=None):
        shown = self.succeed_json("ledger", "show", ledger, "--json")["lines"]
        return [line for line in shown if kind in (None, line["kind"])]

    def check_royalties(self, parts_of):
        log = self.succeed_json("audit", "export", "run.vtr", "--json")
        shares = dict.fromkeys(GROUPS, 0)
        tokens = 0
        for record in log["records"]:
            if not (record.get("prediction") or {}).get("generated"):
                continue
            tokens += 1
            experts, weights = zip(*parts_of(record))
            for expert, units in zip(experts, units_of(weights)):
                shares[next(n for n, group in GROUPS.items() if expert in group)] += units
        self.assertEqual(sum(shares.values()), tokens * UNITS)
        expected = round_together([Fraction(shares[rate["group"]] * rate["token"], UNITS)
                                   for rate in RATES["royalties"]])
        payer, *lines = self.lines(kind="royalties")
        self.assertEqual([line["micro"] for line in lines], expected)
        self.assertEqual(payer["micro"], -sum(expected))
        self.assertGreater(sum(expected), 0)

    def test_royalties_follow_from_the_log(self):
        self.generate("run.vtr", "--attribution", "--audit-level", "full")
        self.write_rates()
        self.book("royalties", "run.vtr")
        self.check_royalties(gate_weights)

    def test_royalties_by_attribution(self):
        self.generate("run.vtr", "--attribution", "--audit-level", "full")
        self.write_rates(basis="attribution")
        self.book("royalties", "run.vtr")
        self.check_royalties(attributions)

    def test_royalties_of_a_federation(self):
        federation = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "federation.json"
        self.succeed("federate", federation, "-p", PROMPT, "-n", 30, "--seed", 5,
                     "--ignore-end-of-text", "--audit", "run.vtr")
        names = ["scripture", "science", "essays"]
        rates = [{"specialist": name, "account": name, "token": token}
                 for name, token in zip(names, (100, 70, 33))]
        self.write_rates(basis="responsibility", royalties=rates)
        self.book("royalties", "run.vtr")
        log = self.succeed_json("audit", "export", "run.vtr", "--json")
        order = log["audit"]["federation"]["specialists"]
        shares = dict.fromkeys(order, 0)
        for record in log["records"]:
            if (record.get("prediction") or {}).get("generated"):
                parts = record["prediction"]["federation"]["specialists"]
                for name, units in zip(order, units_of([part["share"] for part in parts])):
                    shares[name] += units
        self.assertEqual(sum(shares.values()), 30 * UNITS)
        expected = round_together([Fraction(shares[rate["specialist"]] * rate["token"], UNITS)
                                   for rate in rates])
        payer, *lines = self.lines(kind="royalties")
        self.assertEqual([line["micro"] for line in lines], expected)
        self.assertEqual([line["account"] for line in lines], names)
        self.assertEqual(payer["micro"], -sum(expected))
        self.write_rates(basis="responsibility", royalties=rates[:2])
        self.fail_with(2, ["no rate for specialist 'essays'"], "ledger", "royalties", "run.vtr",
                       "--rates", "rates.json", "--out", "other.sqlite")
        # A contributor whose share is nothing has a rate, too.
        spec = json.loads(federation.read_text())
        spec["base"] = MODEL
        for one in spec["specialists"]:
            one["adapter"] = str(federation.parent / one["adapter"])
        spec["combiner"] = {"kind": "mixture", "weights": [0.5, 0.5, 0]}
        (self.folder / "two.json").write_text(json.dumps(spec))
        self.succeed("federate", "two.json", "-p", PROMPT, "-n", 10, "--audit", "two.vtr")
        self.fail_with(2, ["no rate for specialist 'essays'"], "ledger", "royalties", "two.vtr",
                       "--rates", "rates.json", "--out", "other.sqlite")
        self.write_rates(basis="responsibility", royalties=rates)
        self.succeed("ledger", "royalties", "two.vtr", "--rates", "rates.json", "--out", "l.sqlite")
        self.succeed("audit", "redact", "run.vtr", "part.vtr", "--columns", "federation",
                     "--positions", "9-10")
        self.fail_with(2, ["'responsibility' of all", "no position of it is redacted"], "ledger",
                       "royalties", "part.vtr", "--rates", "rates.json", "--out", "other.sqlite")
        self.fail_with(2, ["--parquet -", "a file"], "ledger", "export", "l.sqlite", "--parquet",
                       "-")

    def test_lost_positions_and_the_size_of_the_file(self):
        self.generate("run.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        self.assertEqual({line["log_bytes"] for line in self.lines()},
                         {(self.folder / "run.vtr").stat().st_size})
        lost = self.run_tool("generate", MODEL, "-p", PROMPT, "-n", 900, "--ignore-end-of-text",
                             "--audit-level", "full", "--audit", "lost.vtr", "--audit-on-error",
                             "degrade", **file_size_limit(30000))
        self.assertEqual(lost.returncode, 0, lost.stderr)
        self.fail_with(2, ["lost.vtr", "lost", "positions"], "ledger", "settle", "lost.vtr",
                       "--rates", "rates.json", "--out", "lost.sqlite")
        self.book("settle", "lost.vtr", ledger="lost.sqlite", more=["--allow-incomplete"])
        self.assertEqual({line["seal"] for line in self.lines("lost.sqlite")}, {"open"})

    def test_a_full_disk_leaves_no_ledger(self):
        self.generate("run.vtr")
        self.write_rates()
        result = self.run_tool("ledger", "settle", "run.vtr", "--rates", "rates.json", "--out",
                               "full.sqlite", **file_size_limit(4096))
        self.assertNotEqual(result.returncode, 0)
        self.assertFalse((self.folder / "full.sqlite").exists())

    def test_a_filtered_list_says_whose_the_balances_are(self):
        self.generate("run.vtr")
        self.generate("other.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        shown = self.succeed("ledger", "show", "other.vtr", "--out", "ledger.sqlite").stdout
        self.assertIn(b"nothing is booked of these", shown)
        self.assertIn(b"balances of the whole ledger", shown)

    def test_an_export_leaves_the_ledger_whole(self):
        self.generate("run.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        (self.folder / "link").symlink_to(self.folder / "ledger.sqlite")
        before = (self.folder / "ledger.sqlite").read_bytes()
        for output in ("ledger.sqlite", "link"):
            for option in ("--csv", "--parquet"):
                self.fail_with(2, ["would replace", "ledger"], "ledger", "export",
                               "ledger.sqlite", option, output)
        self.fail_with(2, ["would replace"], "ledger", "export", "ledger.sqlite", "--csv", "same",
                       "--parquet", "same")
        self.assertEqual((self.folder / "ledger.sqlite").read_bytes(), before)

    def test_royalties_of_a_federation_by_attribution(self):
        federation = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "federation.json"
        self.succeed("federate", federation, "-p", PROMPT, "-n", 30, "--seed", 5,
                     "--ignore-end-of-text", "--audit", "run.vtr", "--attribution")
        self.write_rates("gates.json")
        self.fail_with(2, ["run.vtr", "gate_weight", "expected basis responsibility"], "ledger",
                       "royalties", "run.vtr", "--rates", "gates.json", "--out", "ledger.sqlite")
        # Four layers of each specialist; two groups of its experts each.
        rates = [{"group": f"{name} {first}", "account": name, "token": 40 + 7 * i + first,
                  "experts": [{"layers": [4 * i, 4 * i + 3], "experts": [first, first + 3]}]}
                 for i, name in enumerate(("scripture", "science", "essays")) for first in (0, 4)]
        self.write_rates(basis="attribution", royalties=rates, settlement={})
        self.book("royalties", "run.vtr")
        self.book("settle", "run.vtr")
        log = self.succeed_json("audit", "export", "run.vtr", "--json")
        shares = dict.fromkeys((rate["group"] for rate in rates), 0)
        for record in log["records"]:
            if not (record.get("prediction") or {}).get("generated"):
                continue
            who, weights = [], []
            for i, part in enumerate(record["prediction"]["federation"]["specialists"]):
                terms = [(term["layer"], term["expert"],
                          max(0.0, float(np.float32(term["value"]))))
                         for term in part["attribution"]["terms"] if term["part"] == "expert"]
                total = 0.0
                for _, _, value in terms:
                    total += value
                for layer, expert, value in terms if total else ():
                    self.assertEqual(layer // 4, i)
                    who.append(rates[2 * i + expert // 4]["group"])
                    weights.append(part["share"] * (value / total))
            for group, units in zip(who, units_of(weights)):
                shares[group] += units
        self.assertEqual(sum(shares.values()), 30 * UNITS)
        expected = round_together([Fraction(shares[rate["group"]] * rate["token"], UNITS)
                                   for rate in rates])
        payer, *lines = self.lines(kind="royalties")
        self.assertEqual([line["micro"] for line in lines], expected)
        self.assertEqual(payer["micro"], -sum(expected))
        self.succeed("ledger", "verify", "run.vtr", "--rates", "rates.json", "--out",
                     "ledger.sqlite")

    def test_settlement(self):
        self.generate("run.vtr", "--seal", "key", tokens=23)
        self.write_rates()
        self.book("settle", "run.vtr", more=("--key", "key.pub"))
        lines = self.lines(kind="settlement")
        one = lines[0]
        report = json.loads(self.verify("run.vtr", "--json"))
        self.assertEqual(one["tokens_out"], 23)
        self.assertEqual(one["tokens_in"], report["counts"]["tokens"] - 22)
        self.assertEqual(one["device_us"], report["counts"]["step_ns"] // 1000)
        self.assertGreater(one["device_us"], 0)
        rates = RATES["settlement"]
        expected = round_together([Fraction(rates["token_in"] * one["tokens_in"]),
                                   Fraction(rates["token_out"] * one["tokens_out"]),
                                   Fraction(rates["mebibyte"] * one["log_bytes"], 2**20),
                                   Fraction(rates["second"] * one["device_us"], 10**6)])
        self.assertEqual([line["micro"] for line in lines], [-sum(expected), *expected])

    def test_waiting_for_a_user_costs_nothing(self):
        (self.folder / "template.jinja").write_text("{{ messages[-1].content }}")
        chat = subprocess.Popen([VITRINE, "chat", MODEL, "--chat-template", "template.jinja",
                                 "-n", "4", "--audit", "run.vtr"], cwd=self.folder,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        chat.stdin.write(b"Once\n")
        chat.stdin.flush()
        time.sleep(1.5)
        _, stderr = chat.communicate(b"upon a time\n", timeout=TIMEOUT)
        self.assertEqual(chat.returncode, 0, stderr)
        self.write_rates()
        self.book("settle", "run.vtr")
        self.assertLess(self.lines(kind="settlement")[0]["device_us"], 1_000_000)

    def test_a_prompt_counts_once(self):
        """However many candidates or attempts read its last token."""
        self.write_rates()
        sampled = ("generate", MODEL, "-n", 9, "-s", 3, "--temperature", 1)
        runs = {"one": ("-p", PROMPT), "best": ("-p", PROMPT, "--n-best", 3),
                "short": ("-p", "a", "--n-best", 3),
                "retry": ("-p", PROMPT, "--choice", "a dog", "--validate-with", "false",
                          "--max-retries", 2)}
        for name, arguments in runs.items():
            self.run_tool(*sampled, *arguments, "--audit", f"{name}.vtr")
            self.book("settle", f"{name}.vtr")
            prompt = self.prompt_tokens(arguments[1])
            self.assertEqual(self.lines(kind="settlement")[-1]["tokens_in"], prompt, name)
            (self.folder / "ledger.sqlite").unlink()
        # Where tokens are left out, it cannot be told.
        for name, code in (("one", 0), ("best", 2), ("retry", 2)):
            self.succeed("audit", "redact", f"{name}.vtr", "less.vtr", "--columns", "tokens")
            result = self.run_tool("ledger", "settle", "less.vtr", "--rates", "rates.json", "--out",
                                   "ledger.sqlite")
            self.assertEqual(result.returncode, code, (name, result.stderr))
            if code:
                self.assert_one_line(result.stderr, "less.vtr", "which tokens were read")

    def test_twice_is_once(self):
        self.generate("run.vtr")
        self.generate("other.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        before = self.lines()
        # A copy without its text is the same run.
        self.succeed("audit", "redact", "run.vtr", "copy.vtr", "--columns", "text,norms")
        self.assertIn("nothing changed", self.book("settle", "copy.vtr"))
        self.assertIn("from run.vtr", self.book("settle", "copy.vtr"))
        self.assertEqual(self.lines(), before)
        self.write_rates("dear.json", settlement={"token_in": 9})
        self.fail_with(2, ["run.vtr", "other rates"], "ledger", "settle", "other.vtr", "run.vtr",
                       "--rates", "dear.json", "--out", "ledger.sqlite")
        self.assertEqual(self.lines(), before)
        self.fail_with(2, ["copy.vtr", "again"], "ledger", "settle", "run.vtr", "copy.vtr",
                       "--rates", "rates.json", "--out", "ledger.sqlite")

    def test_verify(self):
        self.generate("run.vtr")
        self.generate("other.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        self.book("royalties", "run.vtr")
        text = self.book("verify", "run.vtr")
        self.assertEqual(text.count("as the log and the rates make it"), 2, text)
        arguments = ("--rates", "rates.json", "--out", "ledger.sqlite")
        result = self.run_tool("ledger", "verify", "other.vtr", *arguments)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout.count(b"WRONG: not booked"), 2)
        # A copy without its text is the same run, and says whose size and hash it cannot show.
        self.succeed("audit", "redact", "run.vtr", "copy.vtr", "--columns", "text,norms")
        text = self.book("verify", "copy.vtr")
        self.assertEqual(text.count("but for size and hash of what was booked, run.vtr"), 2, text)
        # What is missing is found, also where the other kind is there.
        self.book("settle", "other.vtr")
        result = self.run_tool("ledger", "verify", "other.vtr", *arguments)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"royalties: WRONG: not booked", result.stdout)
        # A whole log is no other's copy.
        self.book("settle", "copy.vtr", ledger="copies.sqlite")
        self.assertIn("from copy.vtr", self.book("settle", "run.vtr", ledger="copies.sqlite"))
        result = self.run_tool("ledger", "verify", "run.vtr", "--rates", "rates.json", "--out",
                               "copies.sqlite")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"WRONG: booked from copy.vtr", result.stdout)

    def test_a_changed_line_is_found(self):
        import sqlite3
        self.generate("run.vtr")
        self.write_rates()
        self.book("royalties", "run.vtr")
        database = sqlite3.connect(self.folder / "ledger.sqlite")
        with database:  # balanced, so that only the logs tell
            database.execute("UPDATE lines SET micro = micro - 1 WHERE id = 2")
            database.execute("UPDATE lines SET micro = micro + 1 WHERE id = 3")
        database.close()
        result = self.run_tool("ledger", "verify", "run.vtr", "--rates", "rates.json", "--out",
                               "ledger.sqlite")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"make other lines", result.stdout)
        for change, words in (("bookings SET proof = 'x'", b"proof is 'x'"),
                              ("bookings SET tokens_out = 1", b"tokens_out is 1"),
                              ("bookings SET currency = 'USD'", b"currency is 'USD'"),
                              ("rates SET text = '{}'", b"another text than their SHA-256"),
                              ("runs SET log_id = 'x'", b"is gone")):
            (self.folder / "ledger.sqlite").unlink()
            self.book("royalties", "run.vtr")
            database = sqlite3.connect(self.folder / "ledger.sqlite")
            with database:
                database.execute(f"UPDATE {change}")
            database.close()
            result = self.run_tool("ledger", "verify", "run.vtr", "--rates", "rates.json", "--out",
                                   "ledger.sqlite")
            self.assertNotEqual(result.returncode, 0, change)
            self.assertIn(words, result.stdout + result.stderr, change)

    def test_an_open_log(self):
        self.generate("run.vtr", tokens=200)
        self.write_rates()
        data = (self.folder / "run.vtr").read_bytes()
        (self.folder / "cut.vtr").write_bytes(data[:-40])
        arguments = ("ledger", "settle", "cut.vtr", "--rates", "rates.json", "--out", "l.sqlite")
        self.fail_with(2, ["cut.vtr", "open"], *arguments)
        self.succeed(*arguments, "--allow-incomplete")
        self.assertEqual({line["seal"] for line in self.lines("l.sqlite")}, {"open"})
        # The whole log takes its place, and the other way round is refused.
        self.assertIn("in place of", self.book("settle", "run.vtr", ledger="l.sqlite"))
        whole = self.lines("l.sqlite")
        self.assertEqual({line["seal"] for line in whole}, {"complete"})
        self.assertEqual(sum(line["micro"] for line in whole), 0)
        self.fail_with(2, ["cut.vtr", "other lines", "run.vtr"], *arguments, "--allow-incomplete")
        self.assertEqual(self.lines("l.sqlite"), whole)
        # What stands beside royalties is of the log that they were booked from.
        self.book("royalties", "cut.vtr", ledger="l.sqlite", more=("--allow-incomplete",))
        royalties = self.lines("l.sqlite", kind="royalties")
        self.assertEqual({(line["run"], line["seal"]) for line in royalties}, {("cut.vtr", "open")})
        self.assertNotEqual(royalties[0]["proof"], whole[0]["proof"])
        result = self.run_tool("ledger", "verify", "run.vtr", "--rates", "rates.json", "--out",
                               "l.sqlite")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"royalties: WRONG: seal is 'open', the log says 'complete'", result.stdout)

    def test_an_encrypted_log_is_shown_without_its_key(self):
        self.succeed("audit", "keygen", "reader")
        self.generate("run.vtr", "--encrypt-for", "reader.pub")
        self.write_rates()
        self.book("settle", "run.vtr", more=("--decrypt", "reader"))
        self.assertIn(b"settlement of run.vtr", self.succeed("ledger", "show", "run.vtr", "--out",
                                                             "ledger.sqlite").stdout)

    def test_where_a_ledger_may_be(self):
        self.generate("run.vtr")
        self.write_rates()
        self.fail_with(2, ["--out", "empty"], "ledger", "settle", "run.vtr", "--rates",
                       "rates.json", "--out", "")
        self.book("settle", "run.vtr", ledger=":memory:")
        self.assertTrue((self.folder / ":memory:").is_file())
        self.assertIn("nothing changed", self.book("settle", "run.vtr", ledger=":memory:"))
        self.book("settle", "run.vtr", ledger="file:x?mode=memory")
        self.assertTrue((self.folder / "file:x?mode=memory").is_file())

    def test_an_export_spares_what_is_no_file(self):
        self.generate("run.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        os.mkfifo(self.folder / "pipe")
        for option in ("--csv", "--parquet"):
            self.fail_with(1, ["pipe", "not a regular file"], "ledger", "export", "ledger.sqlite",
                           option, "pipe")
            self.assertTrue((self.folder / "pipe").is_fifo())
            (self.folder / "lines").write_text("old")
            (self.folder / "link").unlink(missing_ok=True)
            (self.folder / "link").symlink_to("lines")
            self.succeed("ledger", "export", "ledger.sqlite", option, "link")
            self.assertTrue((self.folder / "link").is_symlink())
            self.assertNotEqual((self.folder / "lines").read_bytes(), b"old")

    def test_broken_and_foreign(self):
        self.generate("run.vtr")
        self.write_rates()
        data = bytearray((self.folder / "run.vtr").read_bytes())
        data[len(data) // 2] ^= 1
        (self.folder / "broken.vtr").write_bytes(data)
        self.fail_with(2, ["broken.vtr", "broken"], "ledger", "settle", "broken.vtr", "--rates",
                       "rates.json", "--out", "ledger.sqlite", )
        self.succeed("audit", "keygen", "key")
        self.fail_with(2, ["run.vtr"], "ledger", "settle", "run.vtr", "--rates", "rates.json",
                       "--out", "ledger.sqlite", "--key", "key.pub")
        (self.folder / "ledger.sqlite").write_text("x" * 3000)
        self.fail_with(2, ["ledger.sqlite", "not a database"], "ledger", "settle", "run.vtr",
                       "--rates", "rates.json", "--out", "ledger.sqlite")

    def test_what_the_rates_need(self):
        self.generate("run.vtr")
        self.write_rates(basis="attribution")
        self.fail_with(2, ["run.vtr", "attribution"], "ledger", "royalties", "run.vtr", "--rates",
                       "rates.json", "--out", "ledger.sqlite")
        self.write_rates(royalties=RATES["royalties"][:1])
        self.fail_with(2, ["no rate for expert", "rates.json"], "ledger", "royalties", "run.vtr",
                       "--rates", "rates.json", "--out", "ledger.sqlite")
        self.succeed("audit", "redact", "run.vtr", "copy.vtr", "--columns", "routing")
        self.write_rates()
        (self.folder / "settling.json").write_text(json.dumps(
            {key: RATES[key] for key in ("currency", "payer", "server", "settlement")}))
        self.fail_with(2, ["'gone.sqlite' is not there"], "ledger", "show", "--out", "gone.sqlite")
        self.fail_with(2, ["'royalties' is missing"], "ledger", "royalties", "run.vtr", "--rates",
                       "settling.json", "--out", "ledger.sqlite")
        self.fail_with(2, ["copy.vtr", "gate_weight"], "ledger", "royalties", "copy.vtr",
                       "--rates", "rates.json", "--out", "ledger.sqlite")
        self.book("settle", "copy.vtr")

    def test_exports(self):
        self.generate("run.vtr")
        self.write_rates()
        self.book("settle", "run.vtr")
        self.book("royalties", "run.vtr")
        shown = self.lines()
        text = self.succeed("ledger", "export", "ledger.sqlite", "--csv", "-").stdout.decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        self.assertEqual([int(row["micro"]) for row in rows], [line["micro"] for line in shown])
        self.assertEqual(sum(int(row["micro"]) for row in rows), 0)
        self.succeed("ledger", "export", "ledger.sqlite", "--csv", "lines.csv")
        self.assertEqual((self.folder / "lines.csv").read_bytes().decode(), text)
        import pyarrow.parquet
        self.succeed("ledger", "export", "ledger.sqlite", "--parquet", "lines.parquet")
        table = pyarrow.parquet.read_table(self.folder / "lines.parquet")
        self.assertEqual(table.column_names, list(rows[0]))
        for name in table.column_names:
            self.assertEqual([str(value) for value in table[name].to_pylist()],
                             [row[name] for row in rows], name)
        self.fail_with(2, ["--csv"], "ledger", "export", "ledger.sqlite")
        self.fail_with(1, ["no/such"], "ledger", "export", "ledger.sqlite", "--parquet",
                       "no/such/file.parquet")
