# SPDX-License-Identifier: Apache-2.0
"""Everything that `vitrine serve` answers: http_test.py TOOL MODEL [CLASS…]."""

import os
import pathlib
import sys
import unittest

if __name__ == "__main__":
    os.environ["VITRINE_TOOL"], os.environ["VITRINE_MODEL"] = sys.argv[1:3]
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    found = unittest.TestLoader().discover(str(here), pattern="*_cases.py")
    chosen = set(sys.argv[3:])

    def cases(suite):
        for each in suite:
            if isinstance(each, unittest.TestSuite):
                yield from cases(each)
            else:
                yield each

    wanted = unittest.TestSuite(
        each for each in cases(found) if not chosen or type(each).__name__ in chosen)
    sys.exit(not unittest.TextTestRunner(verbosity=1).run(wanted).wasSuccessful())
