#!/usr/bin/env python3
# Checks of the sources themselves: what a reviewer would otherwise have to remember. The rules are in
# rules_*.py, one function each; this file finds the files, runs one rule or all, and proves with each
# rule's own bad samples that it can fail.
# SPDX-License-Identifier: Apache-2.0
"""usage: lint.py [--root DIR] [RULE...]      run rules (all without a name); exit 1 on a finding
       lint.py --self-test [RULE...]       every rule must reject its bad samples, pass its good ones
       lint.py --list                      names of the rules"""
import argparse
import fnmatch
import pathlib
import re
import sys
import tempfile

SKIP_EXIT = 77  # CTest's SKIP_RETURN_CODE: the tool a rule needs is not installed
TOP = ("proto", "service", "kernels", "scheduler", "client", "deploy", "tests", "cmake")
CPP = ("*.h", "*.cc", "*.cu", "*.cuh")

RULES = {}


class Skip(Exception):
    """The rule cannot run here; the text says what is missing."""


class Tree:
    """The source tree below `root`: build outputs, caches and test data are not part of it."""

    def __init__(self, root):
        self.root = pathlib.Path(root)

    def files(self, patterns, under=TOP):
        """Relative paths below the folders `under` whose names match one of `patterns`, sorted."""
        found = []
        for folder in under:
            for path in sorted((self.root / folder).rglob("*")):
                name = path.relative_to(self.root).as_posix()
                if "__pycache__" in name or name.startswith("tests/data/") or not path.is_file():
                    continue
                if any(fnmatch.fnmatch(path.name, p) for p in patterns):
                    found.append(name)
        return found

    def root_files(self, patterns):
        return sorted(p.name for p in self.root.iterdir()
                      if p.is_file() and any(fnmatch.fnmatch(p.name, q) for q in patterns))

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8")

    def exists(self, name):
        return (self.root / name).exists()

    def code(self, name):
        """A C++ file with comments and string contents blanked; line numbers stay."""
        token = re.compile(
            r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
        return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), self.text(name))


def rule(bad, good=()):
    """Registers a rule: a function of a Tree that returns findings. `bad` and `good` are sample trees
    ({path: text}); each bad one must yield a finding, each good one none."""
    def register(function):
        assert bad, f"{function.__name__} has no bad sample"
        RULES[function.__name__] = (function, bad, good)
        return function
    return register


def lines(text):
    return enumerate(text.splitlines(), start=1)


def self_test(names):
    failures = []
    for name in names:
        function, bad, good = RULES[name]
        samples = [(s, True) for s in bad] + [(s, False) for s in good]
        for index, (sample, must_fail) in enumerate(samples):
            with tempfile.TemporaryDirectory() as folder:
                for path, text in sample.items():
                    target = pathlib.Path(folder) / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text, encoding="utf-8")
                found = function(Tree(folder))
            if bool(found) != must_fail:
                kind = "bad sample passed" if must_fail else f"good sample rejected: {found}"
                failures.append(f"{name}: {kind} (sample {index}: {', '.join(sample)})")
    return failures


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("rules", nargs="*")
    args = parser.parse_args()
    # They register themselves.
    import rules_cases, rules_data, rules_docs, rules_includes, rules_sources  # noqa: F401
    unknown = [name for name in args.rules if name not in RULES]
    if unknown:
        sys.exit(f"no rule {', '.join(unknown)}; rules are: {', '.join(RULES)}")
    if args.list:
        print("\n".join(RULES))
        return 0
    names = args.rules or list(RULES)
    try:
        if args.self_test:
            findings = self_test(names)
        else:
            tree = Tree(args.root)
            findings = [f"{name}: {f}" for name in names for f in RULES[name][0](tree)]
    except Skip as missing:
        print(f"skipped: {missing}")
        return SKIP_EXIT
    print("\n".join(findings) if findings else f"{len(names)} rules, nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.modules["lint"] = sys.modules["__main__"]
    sys.exit(main())
