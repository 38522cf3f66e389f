# SPDX-License-Identifier: Apache-2.0
"""What the command line tool says of the processor that it runs on.

usage: processor_test.py VITRINE MODEL OTHER_PROCESSOR [unittest arguments]
"""

import os
import sys
import unittest

from tool import SMALL, CliTest

OTHER = os.path.abspath(sys.argv[3])
UNUSED = "AVX-512 without VNNI is not used"


class Processor(CliTest):
    def test_what_is_not_used(self):
        other = {**os.environ, "LD_PRELOAD": OTHER, "VITRINE_CPU_ISA": "portable"}
        told = f"portable; {UNUSED}"
        self.assertIn(f"kernels   {told}\n", self.succeed("--version", env=other).stdout.decode())
        self.assertIn(f"fused kernels ({told}), ",
                      self.succeed("inspect", SMALL, env=other).stdout.decode())
        facts = self.succeed_json("inspect", SMALL, "--json", env=other)
        self.assertEqual((facts["isa"], facts["unused_features"]), ("portable", UNUSED))

    def test_the_reference_path_says_nothing_of_it(self):
        other = {**os.environ, "LD_PRELOAD": OTHER}
        reference = ("inspect", SMALL, "--kernels", "reference")
        self.assertNotIn(UNUSED, self.succeed(*reference, env=other).stdout.decode())
        self.assertEqual(self.succeed_json(*reference, "--json", env=other)["unused_features"], "")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
