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


def layer_of(name):
    return max((layer for layer in LAYERS if name.startswith(layer[0])), key=lambda l: len(l[0]))


@rule(
    bad=[
        {"kernels/a.h": '#include "scheduler/scheduler.h"\n'},
        {"kernels/formats/a.h": "#include <cuda_runtime.h>\n"},
        {"kernels/backend.h": '#include "kernels/cpu/cpu_backend.h"\n'},
        {"kernels/cpu/a.cc": '#include "kernels/cuda/device_query.h"\n'},
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
