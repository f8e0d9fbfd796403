#!/usr/bin/env python3
# Writes a small BF16 checkpoint with the tensor names of a Hugging Face model, for trying out import
# and quantisation without a download. The weights are random, the same for the same seed. Standard
# library only.
# SPDX-License-Identifier: Apache-2.0
"""usage: make_checkpoint.py FILE.safetensors"""
import json
import os
import random
import struct
import sys

LAYERS, HIDDEN, KV, INNER = 2, 512, 128, 1280
# High bytes of +-2^-7 .. +-2^-3: the sign and most of the exponent of a BF16, one for each random byte.
HIGH = bytes((0x3C, 0xBC, 0x3D, 0xBD)[i % 4] for i in range(256))


def shapes():
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield prefix + "self_attn.k_proj.weight", (KV, HIDDEN)
        yield prefix + "self_attn.v_proj.weight", (KV, HIDDEN)
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield prefix + "mlp.gate_proj.weight", (INNER, HIDDEN)
        yield prefix + "mlp.up_proj.weight", (INNER, HIDDEN)
        yield prefix + "mlp.down_proj.weight", (HIDDEN, INNER)
        yield prefix + "input_layernorm.weight", (HIDDEN,)  # not a projection: import must skip it
    yield "lm_head.weight", (1000, HIDDEN)


def bf16(rng, count):
    both = bytearray(2 * count)
    both[0::2] = rng.randbytes(count)
    both[1::2] = rng.randbytes(count).translate(HIGH)
    return both


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    rng = random.Random(20240501)
    header, body = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in shapes():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(body)
        body += bf16(rng, count)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = sys.argv[1] + ".partial"  # a file that is there is whole
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    os.replace(partial, sys.argv[1])


if __name__ == "__main__":
    main()
