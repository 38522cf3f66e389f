# SPDX-License-Identifier: Apache-2.0
"""scripts/count_tests on results that are written here: what it counts and which are slowest."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "count_tests"
CASE = '<testcase name="{}" time="{}" status="{}">{}<system-out>{}</system-out></testcase>'


class CountTests(unittest.TestCase):
    def run_on(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "build", "test-results")
            results.mkdir(parents=True)
            (results / "ctest.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            found = subprocess.run([sys.executable, SCRIPT, results.parent], capture_output=True, text=True,
                                   check=False)
            return found.returncode, found.stdout.splitlines()

    def test_the_slowest_come_first_and_the_counts_last(self):
        cases = [CASE.format(f"test_{i:02}", i * 7 % 13 + 0.25, "run", "", "") for i in range(13)]
        code, lines = self.run_on(*cases, CASE.format("broken", 0.5, "fail", "<failure/>", ""))
        self.assertEqual((code, lines[-2:]), (1, ["failed: build: broken", "13 passed, 1 failed, 0 skipped"]))
        self.assertEqual(lines[0], "   12.2 s  build: test_11")
        seconds = [float(line.split()[0]) for line in lines[:-2]]
        self.assertEqual((len(seconds), seconds), (10, sorted(seconds, reverse=True)))

    def test_single_tests_count(self):
        text = "Ran 5 tests in 1.0s\n\nOK (skipped=2)\n"
        self.assertEqual(self.run_on(CASE.format("a", 1, "run", "", text))[1][-1],
                         "3 passed, 0 failed, 2 skipped")


if __name__ == "__main__":
    unittest.main()
