#!/usr/bin/env python3
# Runs end-to-end tests by name, for CTest: one process a test, `--list` names them. Exit status 1 on
# a failure and when no test has the name.
# SPDX-License-Identifier: Apache-2.0
"""usage: run.py --list | run.py FILE.CLASS.TEST..."""
import pathlib
import re
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def names():
    """FILE.CLASS.TEST of every test, read from the sources: listing needs no built binary."""
    for path in sorted(HERE.glob("test_*.py")):
        owner = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"class (\w+)\(unittest\.TestCase\)", line):
                owner = match.group(1)
            elif match := re.match(r"    def (test_\w+)\(self\)", line):
                yield f"{path.stem}.{owner}.{match.group(1)}"


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(names()))
        return 0
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
