#!/usr/bin/env python3
# What torch makes of the shapes that fulcrum_bench_cuda times, on the same machine where torch is
# installed: F.linear in BF16, and torch._scaled_mm on FP8 codes with scales of rows (both operands
# FP8, the activations quantised outside of what is timed). Weights rotate over copies of --cold_mb
# together; a cell is the median over --replays of (replay time / --launches) of a CUDA graph. Exits 3
# when torch or its device is missing.
# Usage: torch_peers.py [--shape=NxK[,NxK...]] [--m=1,8,16,32] [--cold_mb=420] [--launches=60]
# [--replays=9] [--device=cuda]
# SPDX-License-Identifier: Apache-2.0
import argparse
import statistics
import sys
import time

SHAPES = "17408x5120,5120x17408,6144x5120,5120x6144,1024x5120"


def parse():
    parser = argparse.ArgumentParser(description="torch as a peer of fulcrum_bench_cuda")
    parser.add_argument("--shape", default=SHAPES)
    parser.add_argument("--m", default="1,8,16,32")
    parser.add_argument("--cold_mb", type=int, default=420)
    parser.add_argument("--launches", type=int, default=60)
    parser.add_argument("--replays", type=int, default=9)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.shapes = [tuple(map(int, shape.split("x"))) for shape in options.shape.split(",")]
    options.rows = [int(m) for m in options.m.split(",")]
    return options


def quantise(torch, values):
    """Codes and the scale of every row."""
    limit = torch.finfo(torch.float8_e4m3fn).max
    scale = values.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / limit
    return (values.float() / scale).to(torch.float8_e4m3fn), scale


class Linear:
    """BF16 weights, which are twice the bytes."""
    name, weight_bytes = "torch F.linear bf16", 2

    def __init__(self, torch, x, weights):
        self.run = lambda i: torch.nn.functional.linear(x, weights[i % len(weights)])


class ScaledMm:
    """FP8 by FP8 to BF16. The library takes rows of activations in sixteens."""
    name, weight_bytes = "torch _scaled_mm fp8", 1

    def __init__(self, torch, x, weights):
        padded = torch.zeros((x.shape[0] + 15) // 16 * 16, x.shape[1], dtype=x.dtype,
                             device=x.device)
        padded[:x.shape[0]] = x
        codes, scales = quantise(torch, padded)
        packed = [quantise(torch, weight) for weight in weights]
        self.run = lambda i: torch._scaled_mm(
            codes, packed[i % len(packed)][0].t(), scale_a=scales,
            scale_b=packed[i % len(packed)][1].t(), out_dtype=torch.bfloat16)


def microseconds(torch, run, options):
    """Median time of a launch."""
    for i in range(3):
        run(i)
    if options.device != "cuda":  # to try the script where there is no GPU
        def replay():
            begin = time.perf_counter()
            for i in range(options.launches):
                run(i)
            return time.perf_counter() - begin
    else:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(0)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(options.launches):
                run(i)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def replay():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3
    replay()
    return 1e6 * statistics.median(replay() for _ in range(options.replays)) / options.launches


def measure(torch, options, n, k, m, peer):
    copies = max(1, -(-options.cold_mb * 1_000_000 // (n * k * peer.weight_bytes)))
    generator = torch.Generator(device=options.device).manual_seed(1)

    def random(rows):
        return torch.randn(rows, k, generator=generator, device=options.device,
                           dtype=torch.float32).to(torch.bfloat16)
    x, weights = random(m), [random(n) for _ in range(copies)]
    work = peer(torch, x, weights)
    exact = x.double() @ weights[0].double().t()
    error = ((work.run(0)[:m].double() - exact).norm() / exact.norm()).item()
    us = microseconds(torch, work.run, options)
    rate = n * k * peer.weight_bytes / us * 1e-3
    print(f"{peer.name:<22} M {m:4d} {us:9.2f} us {rate:7.0f} GB/s  relative error {error:.1e}",
          flush=True)


def main():
    options = parse()
    try:
        import torch
    except ImportError:
        print("torch_peers: torch is not installed", file=sys.stderr)
        return 3
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch_peers: torch finds no CUDA device", file=sys.stderr)
        return 3
    for n, k in options.shapes:
        print(f"{n} x {k}, torch {torch.__version__}")
        for peer in (Linear, ScaledMm):
            for m in options.rows:
                try:
                    measure(torch, options, n, k, m, peer)
                except (RuntimeError, NotImplementedError) as error:  # what torch does not serve
                    print(f"{peer.name:<22} M {m:4d}  not served: {str(error).splitlines()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
