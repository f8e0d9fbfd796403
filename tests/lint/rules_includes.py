# Who may include whom: kernels <- scheduler <- service -> proto <- client, and which layer may see
# CUDA, protobuf, gRPC, Prometheus or Highway. Link lines say the same to the linker; this says it to
# the reader of a file.
# SPDX-License-Identifier: Apache-2.0
import re

from lint import CPP, lines, rule

# Third-party kinds a layer may or may not see, by what follows #include.
KINDS = {
    "cuda": re.compile(r"^(cuda|cublas|cooperative_groups|cub/|nv|mma\.h|thrust/)"),
    "proto": re.compile(r"^(fulcrum/v1/|google/(protobuf|rpc)/)"),
    "grpc": re.compile(r"^grpc(pp)?/"),
    "prometheus": re.compile(r"^prometheus/"),
    "hwy": re.compile(r"^hwy/"),
}
KERNELS = "kernels/(?!cpu/|cuda/|bench/)"  # the device-independent half
ANY = "(kernels|scheduler|service|client|tests)/"

# Longest matching prefix wins: (prefix, what of ours it may include, third-party kinds it may see).
LAYERS = (
    ("kernels/", KERNELS, ()),
    ("kernels/backend_factory.cc", "kernels/", ()),
    ("kernels/cpu/", "kernels/(?!cuda/|bench/)", ("hwy",)),
    ("kernels/cuda/", "kernels/(?!cpu/|bench/)", ("cuda",)),
    ("kernels/cuda/bench/", "kernels/(?!cpu/)", ("cuda",)),
    ("kernels/bench/", "kernels/", ("hwy",)),
    ("scheduler/", f"{KERNELS}|scheduler/", ()),
    ("service/", f"{KERNELS}|scheduler/|service/(?!bench/)", ("proto", "grpc")),
    ("service/histogram", f"{KERNELS}|scheduler/|service/(?!bench/)", ("prometheus",)),
    ("service/metrics", f"{KERNELS}|scheduler/|service/(?!bench/)", ("proto", "grpc", "prometheus")),
    ("service/server", f"{KERNELS}|scheduler/|service/(?!bench/)", ("proto", "grpc", "prometheus")),
    ("service/bench/", f"{KERNELS}|scheduler/|service/|client/cpp/", ("proto", "grpc", "prometheus")),
    ("client/cpp/", "client/cpp/", ("proto", "grpc")),
    ("client/cli/", f"client/|{KERNELS}", ("proto", "grpc")),
    ("client/cli/local_", f"client/cli/|{KERNELS}|scheduler/", ()),
    ("tests/kernels/", "kernels/|tests/", ("hwy", "cuda")),
    ("tests/scheduler/", "kernels/|scheduler/|tests/", ()),
    ("tests/support/", "kernels/|scheduler/|tests/", ()),
    ("tests/", ANY, ("proto", "grpc", "prometheus", "hwy")),
)

# Rooms of a layer's folder, from the bottom up: (room, the rooms it may include besides itself). A
# room is a folder, or the files of the folder whose names begin so ("launch." is launch.h and
# launch.cc). A room may name only rooms above it in its table, so there can be no circle.
ROOMS = {
    "kernels/cuda/": (
        ("device/", ()),
        ("host/", ()),
        ("layout/", ()),
        ("measured.", ()),
        ("launch.", ("host/", "layout/")),
        ("gemm/", ("device/", "layout/", "launch.")),
        ("exact/", ("device/", "layout/", "launch.", "gemm/")),
        ("mma/", ("device/", "layout/", "launch.", "gemm/")),
        ("w8a8/", ("device/", "host/", "layout/", "launch.", "gemm/")),
        ("q2/", ("device/", "layout/", "launch.", "gemm/")),
        ("arms.", ("host/", "measured.")),
        ("arms/", ("device/", "layout/", "launch.", "gemm/", "exact/", "mma/", "w8a8/", "q2/", "arms.")),
        ("runtime/", ("device/", "host/", "layout/", "measured.", "launch.", "gemm/", "w8a8/", "arms.")),
        ("bench/", ("device/", "host/", "layout/", "launch.", "gemm/", "mma/", "w8a8/", "runtime/")),
    ),
}


def layer_of(name):
    return max((layer for layer in LAYERS if name.startswith(layer[0])), key=lambda l: len(l[0]))


@rule(
    bad=[
        {"kernels/a.h": '#include "scheduler/scheduler.h"\n'},
        {"kernels/formats/a.h": "#include <cuda_runtime.h>\n"},
        {"kernels/backend.h": '#include "kernels/cpu/cpu_backend.h"\n'},
        {"kernels/cpu/a.cc": '#include "kernels/cuda/host/device_query.h"\n'},
        {"kernels/numerics/a.cc": "#include <hwy/highway.h>\n"},
        {"scheduler/a.cc": '#include "fulcrum/v1/types.pb.h"\n'},
        {"scheduler/a.h": "#include <grpcpp/grpcpp.h>\n"},
        {"scheduler/a.cc": '#include "kernels/cpu/cpu_backend.h"\n'},
        {"service/shard_service.cc": "#include <prometheus/counter.h>\n"},
        {"service/a.cc": '#include "client/cpp/client.h"\n'},
        {"client/cpp/a.cc": '#include "kernels/types.h"\n'},
        {"client/cli/a.cc": '#include "service/config.h"\n'},
        {"client/cli/a.cc": '#include "scheduler/scheduler.h"\n'},
        {"client/cli/local_a.cc": '#include "client/cpp/client.h"\n'},
        {"tests/kernels/a_test.cc": '#include "scheduler/call.h"\n'},
    ],
    good=[
        {"kernels/cuda/a.cu": '#include <cuda_runtime.h>\n#include "kernels/backend.h"\n'},
        {"client/cli/a.cc": '#include "client/cpp/client.h"\n#include "kernels/types.h"\n'},
        {"client/cli/local_a.cc": '#include "scheduler/scheduler.h"\n'},
        {"service/metrics.cc": "#include <prometheus/counter.h>\n"},
    ],
)
def include_direction(tree):
    findings = []
    for name in tree.files(CPP, under=("kernels", "scheduler", "service", "client", "tests")):
        _, ours, kinds = layer_of(name)
        for number, line in lines(tree.text(name)):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if not match:
                continue
            target = match.group(1)
            if re.match(ANY, target) and not re.match(ours, target):
                findings.append(f"{name}:{number}: may not include {target}")
            for kind, pattern in KINDS.items():
                if pattern.match(target) and kind not in kinds:
                    findings.append(f"{name}:{number}: may not see {kind} ({target})")
    return findings


def room_of(table, path):
    """The room of a path below the table's folder, None where no row has it."""
    return next((room for room, _ in table if path.startswith(room)), None)


def upward_names(table):
    """What rows of a table name that is not above them: without any, there is no circle."""
    rooms = [room for room, _ in table]
    return [f"{room} names {other}, which is not above it in the table"
            for at, (room, below) in enumerate(table) for other in below if other not in rooms[:at]]


assert upward_names((("a/", ()), ("b/", ("a/",)))) == []
assert upward_names((("a/", ("b/",)), ("b/", ("a/",)))), "a circle must be found"


@rule(
    bad=[
        {"kernels/cuda/device/a.cuh": '#include "kernels/cuda/gemm/product.cuh"\n'},
        {"kernels/cuda/layout/a.h": '#include "kernels/cuda/launch.h"\n'},
        {"kernels/cuda/exact/a.cuh": '#include "kernels/cuda/mma/a.cuh"\n'},
        {"kernels/cuda/mma/a.cuh": '#include "kernels/cuda/arms.h"\n'},
        {"kernels/cuda/runtime/a.cc": '#include "kernels/cuda/arms/a.cuh"\n'},
        {"kernels/cuda/attic/a.h": "\n"},
        {"kernels/cuda/odd.h": "\n"},
        {"kernels/cuda/gemm/a.cuh": '#include "kernels/cuda/attic/a.h"\n'},
    ],
    good=[
        {"kernels/cuda/mma/a.cuh": '#include "kernels/cuda/device/a.cuh"\n#include "kernels/cuda/mma/b.h"\n'},
        {"kernels/cuda/launch.cc": '#include "kernels/cuda/launch.h"\n'},
        {"kernels/cuda/device/a.cuh": '#include "kernels/types.h"\n'},
    ],
)
def room_direction(tree):
    findings = []
    for folder, table in ROOMS.items():
        findings += [f"rules_includes.py: {folder}: {row}" for row in upward_names(table)]
        allowed = dict(table)
        for name in tree.files(CPP + ("*.def",), under=(folder.rstrip("/"),)):
            room = room_of(table, name[len(folder):])
            if room is None:
                findings.append(f"{name}: is in no room of {folder} that rules_includes.py lists")
                continue
            for number, line in lines(tree.text(name)):
                match = re.match(rf'\s*#\s*include\s*"{folder}([^"]+)"', line)
                if not match:
                    continue
                other = room_of(table, match.group(1))
                if other != room and other not in allowed[room]:
                    findings.append(f"{name}:{number}: {room} may not include {folder}{match.group(1)}")
    return findings
