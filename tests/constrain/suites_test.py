# SPDX-License-Identifier: Apache-2.0
"""JSON-Schema-Test-Suite (2020-12 and 7) and JSONTestSuite: no wrong answer.

    suites_test.py CHECK_LINES DATA SUITES

DATA has what is known to differ, SUITES the suites (tests/data/json_suites.tar.xz).

Schemas may be refused, but only for the reasons below; what is accepted or refused as an instance
must be as the suites say.
"""

import collections
import json
import pathlib
import sys
import unittest

from lines import LinesTest

DATA, SUITES = (pathlib.Path(folder) for folder in sys.argv[2:4])

# Why a schema of the required tests may be refused, by what its message says; what is refused is
# printed. All else must be judged as the suites say.
MAY_REFUSE = {"another document": "$ref", "is not known": "$schema", "too complex": "multipleOf",
              "nothing is valid": "unsatisfiable"}
# Files in which nothing is refused.
WHOLE = {"unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains", "prefixItems", "if-then-else",
         "dependentSchemas", "anchor"}
# Formats that are not asserted, and details of others that are not kept (docs/constraints.md).
NOT_ASSERTED = {"idn-hostname", "unknown"}
# Valid instances that an answer is not written as.
SPELLINGS = json.loads((DATA / "known_spelling_differences.json").read_text())
KNOWN_DIFFERENCES = json.loads((DATA / "known_format_differences.json").read_text())


# The suite's two files of deep nesting, which need not be stored.
DEEP = {"n_structure_100000_opening_arrays.json": b"[" * 100000,
        "n_structure_open_array_object.json": b'[{"":' * 50000 + b"\n"}


class SuiteTest(LinesTest):
    maxDiff = None

    def run_groups(self, draft, path, format_mode, **options):
        wrong, refused, right = [], collections.Counter(), 0
        for group in json.loads(path.read_text()):
            texts = [json.dumps(test["data"]) for test in group["tests"]]
            answer = self.lines.ask(texts, schema=group["schema"], format=format_mode,
                                    dialect="draft7" if draft == "draft7" else "", **options)
            if "refused" in answer:
                refused[answer["refused"]] += 1
                valid = [test for test in group["tests"] if test["valid"]]
                if "nothing is valid" in answer["refused"] and valid:
                    wrong.append((group["description"], valid[0]["description"], "nothing valid"))
                continue
            for test, verdict in zip(group["tests"], answer["verdicts"]):
                if verdict == test["valid"]:
                    right += 1
                else:
                    wrong.append((group["description"], test["description"], verdict))
        return wrong, refused, right

    def check_draft(self, draft):
        right, differences, unexpected, by_keyword = 0, [], [], collections.Counter()
        for path in sorted((SUITES / draft).glob("*.json")):
            wrong, refused, count = self.run_groups(draft, path, "annotate")
            right += count
            differences += [(path.stem, *what) for what in wrong]
            for why, times in refused.items():
                keyword = next((k for text, k in MAY_REFUSE.items() if text in why), None)
                by_keyword[keyword] += times
                if keyword is None or path.stem in WHOLE:
                    unexpected.append((path.stem, why))
        print(f"{draft}: {right} instances judged right; schemas refused: {dict(by_keyword)}")
        self.assertEqual(differences, [])
        self.assertEqual(unexpected, [])
        self.assertGreater(right, 850)

    def test_2020_12(self):
        self.check_draft("draft2020-12")

    def test_7(self):
        self.check_draft("draft7")

    def test_answers(self):
        """What an answer may have under the options of a host that says nothing: all that the suites
        accept but for the spellings that are named, and nothing that they refuse. With `integers` at
        "any" only numbers of more digits are left."""
        for options, known in (({}, SPELLINGS["plain"]), ({"integers": "any"}, SPELLINGS["any"])):
            differences = []
            for draft in ("draft2020-12", "draft7"):
                for path in sorted((SUITES / draft).glob("*.json")):
                    wrong, _, _ = self.run_groups(draft, path, "annotate", answers=True, **options)
                    self.assertEqual([what for what in wrong if what[2] is not False], [])
                    differences += [f"{draft}/{path.stem}: {group}: {test}" for group, test, _ in wrong]
            self.assertEqual(sorted(differences), sorted(known))

    def test_formats(self):
        right, differences = 0, []
        for draft in ("draft2020-12", "draft7"):
            for path in sorted((SUITES / draft / "optional" / "format").glob("*.json")):
                if path.stem in NOT_ASSERTED:
                    continue
                wrong, _, count = self.run_groups(draft, path, "assert")
                right += count
                differences += [f"{draft}/{path.stem}: {test}" for _, test, _ in wrong]
        print(f"formats: {right} instances judged right")
        self.assertEqual(sorted(differences), sorted(KNOWN_DIFFERENCES))

    def test_json(self):
        counts = collections.Counter()
        texts = {path.name: path.read_bytes() for path in (SUITES / "test_parsing").glob("*.json")}
        for name, text in sorted((texts | DEEP).items()):
            verdict = self.lines.ask([text], json=True)["verdicts"][0]
            if name.startswith("y_"):
                self.assertTrue(verdict, name)
            elif name.startswith("n_"):
                self.assertFalse(verdict, name)
            counts[name[0]] += 1
        print(f"JSONTestSuite: {dict(counts)}")
        self.assertGreater(counts["y"], 90)
        self.assertGreater(counts["n"], 180)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
