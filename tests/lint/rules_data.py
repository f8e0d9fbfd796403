# Data stays data: nothing that a program of ours reads can name code to run. Weights, requests and
# configurations have readers that only know numbers and names.
# SPDX-License-Identifier: Apache-2.0
import ast

from lint import CPP, lines, rule
from rules_sources import FOUR_LAYERS, matches

# Modules whose readers run what they read.
MODULES = {"cloudpickle", "cPickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve",
           "yaml"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"),
          ("subprocess", "getstatusoutput")}


def is_true(node):
    return not (isinstance(node, ast.Constant) and node.value in (False, None, 0))


def faults_of(tree):
    """(line, what) of everything in a Python module that runs what it is given."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in names:
                if (name or "").split(".")[0] in MODULES:
                    yield node.lineno, f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        keywords = {k.arg: k.value for k in node.keywords}
        if isinstance(function, ast.Name) and function.id in BUILTINS:
            yield node.lineno, f"calls {function.id}"
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            name = (function.value.id, function.attr)
            if name in SHELLS:
                yield node.lineno, f"calls {'.'.join(name)}"
            if name == ("torch", "load") and not is_true(keywords.get("weights_only", ast.Constant(0))):
                yield node.lineno, "calls torch.load without weights_only"
        for option in ("shell", "allow_pickle"):
            if option in keywords and is_true(keywords[option]):
                yield node.lineno, f"sets {option}"


@rule(
    bad=[
        {"deploy/a.py": "import pickle\n"},
        {"tests/e2e/a.py": "from yaml import load\n"},
        {"tests/a.py": "import json, marshal\n"},
        {"tests/a.py": "value = eval(text)\n"},
        {"deploy/a.py": "import numpy\nx = numpy.load(path, allow_pickle=True)\n"},
        {"kernels/cuda/bench/a.py": "import torch\nx = torch.load(path)\n"},
        {"deploy/a.py": "import subprocess\nsubprocess.run(line, shell=True)\n"},
        {"deploy/a.py": "import os\nos.system(line)\n"},
        {"deploy/a.py": "this is no Python\n"},
        {"deploy/a.sh": 'eval "$answer"\n'},
        {"client/cli/a.cc": "  std::system(line.c_str());\n"},
        {"service/a.cc": '  FILE* pipe = popen(line, "r");\n'},
    ],
    good=[{"deploy/a.py": "import json\nx = json.loads(text)\npattern = re.compile(text)\n"
                          "torch.load(p, weights_only=True)\nsubprocess.run([a, b], shell=False)\n",
           "deploy/a.sh": "# no eval\nevaluate x\n",
           "service/a.cc": "// popen( is not used\nfilesystem(x);\n"}],
)
def nothing_runs_what_it_reads(tree):
    findings = []
    for name in tree.files(("*.py",)):
        try:
            module = ast.parse(tree.text(name))
        except SyntaxError as error:
            findings.append(f"{name}:{error.lineno}: is no Python: {error.msg}")
            continue
        findings += [f"{name}:{line}: {what}" for line, what in faults_of(module)]
    for name in tree.files(("*.sh",)):
        findings += [f"{name}:{number}: calls eval" for number, line in lines(tree.text(name))
                     if "eval" in line.split("#")[0].split()]
    # A benchmark starts itself a second time.
    product = [n for n in tree.files(CPP, under=FOUR_LAYERS) if not n.startswith("service/bench/")]
    return findings + matches(tree, product,
                              r"(?<![\w.>])(system|popen|exec[lv]p?e?)\s*\(", "runs a program")
