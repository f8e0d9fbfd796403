# Documents and deployment files say only what is there: the files they name exist, the metrics and
# flags they use are the code's. That README's tables equal the code is readme_test.cc's and, for
# metrics, the end-to-end tests'.
# SPDX-License-Identifier: Apache-2.0
import glob
import itertools
import re

from lint import TOP, lines, rule

DEPLOY = ("*.yaml", "*.yml", "*.json", "*.service", "*.sh", "*.py", "*.md", "*.textproto",
          "Containerfile")


def expand(token):
    """a.{h,cc} -> a.h, a.cc"""
    match = re.search(r"\{([^}]*)\}", token)
    if not match:
        return [token]
    return list(itertools.chain.from_iterable(
        expand(token[:match.start()] + part + token[match.end():])
        for part in match.group(1).split(",")))


@rule(
    bad=[{"README.md": "see `service/no_such_file.cc`\n", "service/main.cc": ""},
         {"deploy/README.md": "run `bash deploy/gone.sh`\n"},
         {"README.md": "`kernels/a.{h,cc}`\n", "kernels/a.h": ""},
         {"kernels/README.md": "see `cpu/gone.cc`\n", "kernels/cpu/here.cc": ""}],
    good=[{"README.md": "`kernels/a.{h,cc}`, `kernels/`, `/metrics`\n", "kernels/a.h": "",
           "kernels/a.cc": ""},
          {"kernels/README.md": "`cpu/a.cc` and `NVIDIA/other.h`\n", "kernels/cpu/a.cc": ""}],
)
def named_files_exist(tree):
    """Files by their path from the root and, in a folder's own document, from that folder on."""
    findings = []
    names = [n for n in tree.root_files(("*.md",)) if n != "CHANGELOG.md"] + tree.files(("*.md",))
    for name in names:
        for number, line in lines(tree.text(name)):
            for quoted in re.findall(r"`([^`]+)`", line):
                for token in re.findall(rf"(?<![\w/.-])(?:{'|'.join(TOP)})/[\w./*{{}},-]*", quoted):
                    for path in expand(token.rstrip(".,")):
                        if not glob.glob(str(tree.root / path)):
                            findings.append(f"{name}:{number}: names {path}, which is not there")
                findings += [f"{name}:{number}: names {path}, which is not there"
                             for path in relative_names(tree, name, quoted)
                             if not glob.glob(str((tree.root / name).parent / path))]
    return findings


def relative_names(tree, name, quoted):
    """Paths in `quoted` that begin with a folder beside the document `name`."""
    beside = [p.name for p in (tree.root / name).parent.iterdir() if p.is_dir() and p.name not in TOP]
    if "/" not in name or not beside:
        return []
    tokens = re.findall(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, beside))})/[\w./*{{}},-]*", quoted)
    return [path for token in tokens for path in expand(token.rstrip(".,"))]


def table_metrics(tree):
    """Metric names of README's table: first cells that are one `fulcrum_...` or `grpc_...` name."""
    rows = re.findall(r"^\| `((?:fulcrum|grpc)_\w+)", tree.text("README.md"), re.M)
    return set(rows)


@rule(
    bad=[{"README.md": "| `fulcrum_rows_total` | x |\n",
          "deploy/alerts.yaml": "expr: rate(fulcrum_row_total[5m])\n"},
         {"README.md": "| `fulcrum_stage_seconds` | x |\n",
          "deploy/a.json": '"expr": "fulcrum_stage_second_bucket"\n'}],
    good=[{"README.md": "| `fulcrum_stage_seconds` | x |\n",
           "deploy/a.json": '"expr": "fulcrum_stage_seconds_bucket"\n'}],
)
def deployed_metrics_exist(tree):
    known = table_metrics(tree)
    findings = []
    for name in tree.files(DEPLOY, under=("deploy",)):
        for number, line in lines(tree.text(name)):
            for metric in re.findall(r"\bfulcrum_[a-z0-9_]*[a-z0-9]\b(?!\.)", line):
                if {metric, re.sub(r"_(bucket|sum|count)$", "", metric)}.isdisjoint(known):
                    findings.append(f"{name}:{number}: no metric {metric} in README's table")
    return findings


@rule(
    bad=[{"service/main.cc": 'app.add_option("--listen", x);\n',
          "deploy/systemd/fulcrumd.service": "ExecStart=/usr/bin/fulcrumd --lisen 127.0.0.1:1\n"}],
    good=[{"service/main.cc": 'app.add_option("--listen", x);\n',
           "deploy/systemd/fulcrumd.service": "ExecStart=/usr/bin/fulcrumd --listen 127.0.0.1:1\n"}],
)
def deployed_flags_exist(tree):
    sources = tree.files(("*.cc",), under=("service",))
    known = set(re.findall(r"--[a-z][a-z-]*", " ".join(tree.text(n) for n in sources)))
    findings = []
    for name in tree.files(("*.service", "*.yaml", "Containerfile"), under=("deploy",)):
        for number, line in lines(tree.text(name)):
            if not re.match(r"\s*(ExecStart=|ENTRYPOINT|CMD|args:|command:)", line):
                continue
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line):
                if flag not in known:
                    findings.append(f"{name}:{number}: fulcrumd has no flag {flag}")
    return findings
