# tests/cases.md has one line for every fault it is about, and the tests a line names exist.
# SPDX-License-Identifier: Apache-2.0
import re

from lint import lines, rule

BOOK = "tests/cases.md"
# Every case there is: P from reports about products like this one, R from a tester of this one.
CASES = {"P": ((1, 13), (17, 28), (31, 42), (44, 49), (52, 58), (60, 69), (71, 76), (78, 90),
               (92, 95), (97, 107), (110, 113), (116, 120), (122, 123), (126, 127), (130, 135),
               (137, 141), (143, 147), (149, 155)),
         "R": ((1, 19),)}


def case_ids():
    return [f"{kind}{number:0{3 if kind == 'P' else 2}}"
            for kind, ranges in CASES.items()
            for first, last in ranges for number in range(first, last + 1)]


def rows(tree):
    """(line number, id, fault, held by) of every line of the book's tables that is a case."""
    for number, line in lines(tree.text(BOOK)):
        match = re.match(r"\| ([PR]\d+) \|([^|]*)\|(.*)\|$", line)
        if match:
            yield number, *match.groups()


def book(changed=None, more=""):
    """A whole book as a sample, with some lines changed or left out (None)."""
    held = {case: "Never." for case in case_ids()} | (changed or {})
    return "".join(f"| {case} | x | {text} |\n" for case, text in held.items() if text is not None) + more


def test_names(tree):
    """Suite.Name of every GoogleTest, test_... of every Python test, lint.... of every rule here."""
    names = set()
    for path in tree.files(("*_test.cc",), under=("tests",)):
        names |= {f"{suite}.{name}" for suite, name in
                  re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", tree.text(path))}
    for path in tree.files(("test_*.py",), under=("tests",)):
        names |= set(re.findall(r"def (test_\w+)\(", tree.text(path)))
    for path in tree.files(("rules_*.py",), under=("tests",)):
        names |= {f"lint.{name}" for name in re.findall(r"^def (\w+)\(tree\):", tree.text(path), re.M)}
    return names


@rule(
    bad=[{BOOK: "# none\n"},
         {BOOK: book({"P001": None})},
         {BOOK: book({"P155": None})},
         {BOOK: book({"R19": None})},
         {BOOK: book({"P014": "No such case."})},
         {BOOK: book({"R20": "No such case."})},
         {BOOK: book(more="| P001 | x | Once more. |\n")},
         {BOOK: book({"P078": None}, more="| P78 | x | Its number has three digits. |\n")},
         {BOOK: book({"P099": None}, more="P099: no line of the table\n")}],
    good=[{BOOK: "# Cases\n\n| case | fault | held by |\n|---|---|---|\n" + book()}],
)
def cases_have_a_line_each(tree):
    expected, found, findings = case_ids(), set(), []
    for number, case, _, _ in rows(tree):
        if case in found:
            findings.append(f"{BOOK}:{number}: {case} is there twice")
        if case not in expected:
            findings.append(f"{BOOK}:{number}: there is no case {case}")
        found.add(case)
    return findings + [f"{BOOK}: {case} has no line" for case in expected if case not in found]


@rule(
    bad=[{BOOK: "| P001 | x | `Suite.Gone` |\n", "tests/a_test.cc": "TEST(Suite, Here) {}"},
         {BOOK: "| P001 | x | `test_gone` |\n", "tests/test_a.py": "def test_here(self)"},
         {BOOK: "| P001 | x | `lint.gone` |\n", "tests/lint/rules_a.py": "def here(tree):\n"},
         {BOOK: "| R01 | x | `Suite.Gone` |\n", "tests/a_test.cc": "TEST(Suite, Here) {}"},
         {BOOK: "| P001 | x | because |\n\nBesides: `test_gone`.\n"},
         {BOOK: "| P001 | x | |\n"},
         {BOOK: "| P001 |  | because |\n"},
         {BOOK: "| R01 | x | (pending) |\n"},
         {BOOK: "| P001 | x | `Suite.Here`, (pending) |\n", "tests/a_test.cc": "TEST(Suite, Here) {}"},
         {BOOK: "| P001 | x | because |\n| P001 | x | because |\n"},
         {BOOK: "# none\n"}],
    good=[{BOOK: "| P001 | x | `Suite.Here`, `test_here`, `lint.here` |\n| R02 | x | Never. |\n",
           "tests/a_test.cc": "TEST_F(Suite, Here) {}", "tests/test_a.py": "def test_here(self)",
           "tests/lint/rules_a.py": "def here(tree):\n"}],
)
def cases_name_tests_that_exist(tree):
    names, seen, findings = test_names(tree), set(), []
    for number, case, fault, held in rows(tree):
        at = f"{BOOK}:{number}: {case}"
        if case in seen:
            findings.append(f"{at} is there twice")
        seen.add(case)
        if not fault.strip() or not held.strip():
            findings.append(f"{at} lacks its fault, or has neither a test nor a reason")
        if "(pending)" in held:
            findings.append(f"{at} is pending: name the tests that hold it")
    for number, line in lines(tree.text(BOOK)):
        for token in re.findall(r"`(test_\w+|lint\.\w+|[A-Z]\w+\.[A-Z]\w+)`", line):
            if token not in names:
                findings.append(f"{BOOK}:{number}: names {token}, which is no test")
    return findings or ([] if seen else [f"{BOOK}: no case in it"])
