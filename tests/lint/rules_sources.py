# What every source file owes its reader: a first comment, a bounded size, the project's format, and
# none of the calls, words and shortcuts that the design rules out.
# SPDX-License-Identifier: Apache-2.0
import re
import shutil
import subprocess

from lint import CPP, Skip, lines, rule

SCRIPTS = ("*.py", "*.sh")
TEXT = CPP + SCRIPTS + ("*.md", "*.cmake", "CMakeLists.txt", "*.proto", "*.textproto", "*.yaml",
                        "*.yml", "*.json", "*.service", "Containerfile", "run")
SPDX = "SPDX-License-Identifier: Apache-2.0"
FOUR_LAYERS = ("kernels", "scheduler", "service", "client")


def matches(tree, names, pattern, what):
    """One finding for each match of `pattern` in the code (no comments, no strings) of `names`."""
    return [f"{name}:{number}: {what}: {line.strip()}"
            for name in names
            for number, line in lines(tree.code(name)) if re.search(pattern, line)]


@rule(
    bad=[
        {"kernels/a.cc": "#include <vector>\n"},
        {"kernels/a.cc": "// What it is for.\n#include <vector>\n"},
        {"kernels/a.h": f"// What it is for.\n// {SPDX}\n#include <vector>\n"},
        {"tests/a.py": "import sys\n"},
        {"proto/a.proto": f'syntax = "proto3";\n// {SPDX}\n'},
    ],
    good=[{"kernels/a.h": f"// What it is for.\n// {SPDX}\n#pragma once\n"},
          {"deploy/a.sh": f"#!/bin/bash\n# What it is for.\n# {SPDX}\n"}],
)
def first_comment(tree):
    findings = []
    for name in tree.files(CPP + SCRIPTS + ("*.proto",)):
        head = tree.text(name).splitlines()
        body = [line for line in head if not line.startswith("#!")]
        mark = "#" if name.endswith((".py", ".sh")) else "//"
        leading = []
        for line in body:
            if not line.startswith(mark):
                break
            leading.append(line)
        if not [line for line in leading if len(line) > len(mark) + 1 and SPDX not in line]:
            findings.append(f"{name}:1: must begin by saying what the file is for")
        if f"{mark} {SPDX}" not in leading:
            findings.append(f"{name}: '{mark} {SPDX}' must be a line of the first comment")
        # Highway's -inl.h files are included once for each instruction set, behind a guard of theirs.
        header = name.endswith((".h", ".cuh")) and not name.endswith("-inl.h")
        if header and "#pragma once" not in head:
            findings.append(f"{name}: header without #pragma once")
    return findings


@rule(bad=[{"kernels/a.cc": "int x;\n" * 601}], good=[{"kernels/a.cc": "int x;\n" * 400}])
def file_size(tree):
    findings = []
    for name in tree.files(CPP + SCRIPTS):
        count = len(tree.text(name).splitlines())
        if count > 600:
            findings.append(f"{name}: {count} lines; split it (at most 600, better under 400)")
        elif count > 400:
            print(f"note: {name}: {count} lines, over 400")
    return findings


@rule(
    bad=[
        {"kernels/a.cc": 'const char* v = getenv("X");\n'},
        {"scheduler/a.cc": "int v = absl::GetFlag(FLAGS_v);\n"},
        {"service/a.cc": 'const char* v = std::getenv("X");\n'},
        {"client/cpp/a.cc": "ABSL_FLAG(int, v, 0, \"\");\n"},
    ],
    good=[{"service/main.cc": 'const char* v = std::getenv("X");\n'},
          {"kernels/a.cc": "// getenv is read by main alone\n"}],
)
def environment_is_read_by_main_alone(tree):
    names = [n for n in tree.files(CPP, under=FOUR_LAYERS)
             if n not in ("service/main.cc", "client/cli/main.cc")]
    return matches(tree, names, r"\b(secure_)?getenv\b|\bGetFlag\b|\bABSL_FLAG\b|\benviron\b",
                   "reads the environment or a flag below main")


@rule(
    bad=[
        {"kernels/a.cc": "  throw std::bad_alloc();\n"},
        {"service/a.cc": "  std::exit(1);\n"},
        {"scheduler/a.cc": "  abort();\n"},
        {"client/cli/a.cc": "  _exit(2);\n"},
    ],
    good=[{"service/main.cc": "  _exit(3);  // the hard bound of a stop\n"},
          {"service/a.cc": '  Log("abort(");\n  stream.abort_reason();\n  return app.exit(error);\n'}],
)
def nothing_throws_or_exits(tree):
    pattern = r"\bthrow\b|(?<![\w.>])(exit|abort|_Exit|quick_exit|terminate)\s*\("
    names = tree.files(CPP, under=FOUR_LAYERS)
    return (matches(tree, names, pattern, "throws or ends the process") +
            matches(tree, [n for n in names if n != "service/main.cc"], r"\b_exit\s*\(",
                    "ends the process"))


@rule(bad=[{"service/a.cc": "#ifdef FULCRUM_HAS_CUDA\n"}],
      good=[{"kernels/backend_factory.cc": "#ifdef FULCRUM_HAS_CUDA\n"}])
def one_file_knows_the_compiled_backends(tree):
    names = [n for n in tree.files(CPP) if n != "kernels/backend_factory.cc"]
    return matches(tree, names, r"FULCRUM_HAS_CUDA|__CUDACC__", "conditional on a backend")


@rule(
    bad=[{"kernels/cuda/gemm/a.cuh": 'asm volatile("bar.sync 0;");\n'},
         {"kernels/cuda/runtime/a.cu": 'asm("" : "+r"(x));\n'}],
    good=[{"kernels/cuda/device/a.cuh": 'asm volatile("bar.sync 0;");\n'},
          {"kernels/cuda/bench/a.cu": 'asm volatile("mov.u32 %0, %%smid;" : "=r"(x));\n'}],
)
def ptx_in_one_folder(tree):
    names = [n for n in tree.files(("*.cu", "*.cuh"), under=("kernels",))
             if not n.startswith(("kernels/cuda/device/", "kernels/cuda/bench/"))]
    return matches(tree, names, r"\basm\b", "PTX outside kernels/cuda/device/")


@rule(
    bad=[{"tests/gpu_check.sh": 'for kernel in GoneKernel; do\n  x --kernel-name "kns=$kernel"\n',
          "kernels/cuda/a.cuh": "__global__ void HereKernel(int p) {}\n"},
         {"tests/gpu_check.sh": "no kernels\n"}],
    good=[{"tests/gpu_check.sh": 'for kernel in Here There; do\n  x --kernel-name "kns=$kernel"\n',
           "kernels/cuda/a.cuh": "__global__ void __launch_bounds__(32)\n    Here(int p) {}\n",
           "kernels/cuda/b.cu": "__global__ void __launch_bounds__(kA * 32, (B<c>::D(e)))\n    There(P p) {}\n"}],
)
def race_check_names_kernels(tree):
    """A name that no kernel has would make the race check pass without checking anything."""
    named = re.search(r"for kernel in ([\w ]+); do", tree.text("tests/gpu_check.sh"))
    if not named:
        return ["tests/gpu_check.sh: checks no kernel for races"]
    source = " ".join(tree.code(n) for n in tree.files(("*.cu", "*.cuh"), under=("kernels",)))
    return [f"tests/gpu_check.sh: no kernel is named {name}" for name in named.group(1).split()
            if not re.search(rf"__global__[^;{{}}]*\b{name}\s*\(", source)]


@rule(
    bad=[
        {"tests/a_test.cc": "std::this_thread::sleep_for(1ms);\n"},
        {"tests/a_test.cc": "absl::SleepFor(absl::Milliseconds(1));\n"},
        {"tests/e2e/a.py": "import time\ntime.sleep(1)\n"},
    ],
    good=[{"tests/a_test.cc": "clock.Advance(absl::Milliseconds(1));\n"}],
)
def tests_do_not_sleep(tree):
    pattern = r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep)\b|\btime\.sleep\b|\bsleep\s*\("
    findings = matches(tree, tree.files(CPP, under=("tests",)), pattern, "sleeps")
    for name in tree.files(("*.py",), under=("tests",)):
        if not name.startswith("tests/lint/"):
            findings += [f"{name}:{n}: sleeps" for n, l in lines(tree.text(name)) if re.search(pattern, l)]
    return findings


@rule(
    bad=[
        {"tests/kernels/a_test.cc": "EXPECT_NEAR(a, b, 0.1);\n"},
        {"tests/kernels/a_test.cc": "EXPECT_LT(std::abs(a - b), 1e-3);\n"},
        {"tests/kernels/a_test.cc": "EXPECT_FLOAT_EQ(a, b);\n"},
        {"tests/kernels/a_test.cc": "if (error > 2.5e-4f) return false;\n"},
    ],
    good=[{"tests/kernels/budget_test.cc": "EXPECT_LT(rms, 1e-3);\n"},
          {"tests/kernels/a_test.cc": "EXPECT_TRUE(Within(a, b)); float tiny = 1e-30f;\n"}],
)
def no_tolerance_outside_the_budget(tree):
    names = [n for n in tree.files(CPP, under=("tests/kernels",)) if "/budget" not in n]
    pattern = (r"\b(EXPECT|ASSERT)_(NEAR|FLOAT_EQ|DOUBLE_EQ)\b|\b(Float|Double)(Near|Eq)\b|"
               r"([<>]=?|_(LT|LE|GT|GE)\().*\b\d[\d.]*[eE]-\d")
    return matches(tree, names, pattern, "a tolerance of its own")


@rule(
    bad=[
        {"kernels/a.cc": "// TO" "DO: later\n"},
        {"deploy/a.sh": "cd /ho" "me/someone/project\n"},
        {"README.md": "see /wo" "rk/main\n"},
        {"tests/a.py": "# FIX" "ME\n"},
    ],
    good=[{"deploy/a.sh": "cp x /usr/local/bin; curl http://127.0.0.1:1/metrics\n"}],
)
def no_unfinished_work_or_foreign_paths(tree):
    pattern = re.compile(r"\b(TO" r"DO|FIX" r"ME|HA" r"CK|XXX)\b|(?<![\w.:/}])/(home|root|work|mnt)/")
    names = tree.files(TEXT) + tree.root_files(TEXT)
    return [f"{name}:{number}: {line.strip()}"
            for name in names if not name.startswith("tests/lint/rules_")
            for number, line in lines(tree.text(name)) if pattern.search(line)]


@rule(bad=[{"kernels/a.cc": "int   x ;\n"}], good=[{"kernels/a.cc": "int x;\n"}])
def formatted(tree):
    tool = shutil.which("clang-format-14")
    if tool is None:
        raise Skip("clang-format-14 is not installed")
    names = tree.files(CPP)
    style = "--style={BasedOnStyle: Google, ColumnLimit: 100}"
    if tree.exists(".clang-format"):
        style = "--style=file"
    done = subprocess.run([tool, style, "--dry-run", "-Werror", *names], cwd=tree.root,
                          capture_output=True, text=True)
    files = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    return [f"{name}: not as clang-format-14 writes it (clang-format-14 -i {name})" for name in files]
