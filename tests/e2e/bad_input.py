#!/usr/bin/env python3
# The corpus of malformed calls, and the status each must get. As a program it prints one line a call,
# `name code`, for compare_builds.sh to compare between builds; test_bad_input.py holds the codes.
# Cases P001, P002, P003, P004, P007, P009, P011, P026, P027, P028, P031, P033, P048.
# SPDX-License-Identifier: Apache-2.0
import itertools

from node import GATE, GATE_K, Node, code_of, project, request

INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1
INVALID = "INVALID_ARGUMENT"
ROW = GATE_K * 2  # bytes


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def with_field(number, value, rows=1):
    """A valid request and then a varint field once more: the last one counts."""
    return request(rows=rows).SerializeToString() + varint(number << 3) + varint(value)


def corpus():
    """(name, request, expected code name) of every malformed call."""
    fields = {"rows": 3, "activation_type": 4, "activation_pitch": 6, "output_type": 7,
              "output_pitch": 8, "step": 9, "policy": 10}
    for name in ("activation_type", "output_type", "step", "policy"):
        for value in (99, INT32, -1, 1 << 40 | 77):
            yield f"{name}={value}", with_field(fields[name], value), INVALID
    yield "output_type=f16", with_field(fields["output_type"], 2), INVALID
    for name in ("rows", "activation_pitch", "output_pitch"):
        for value in (-1, -INT64 - 1, INT64, 1 << 62, INT32, 1 << 33):
            # Two rows: the pitch of a single row says nothing, and any is allowed.
            yield f"{name}={value}", with_field(fields[name], value, rows=2), INVALID
    for value in (0, 2, 33, 64):
        yield f"rows={value} with one row", with_field(fields["rows"], value), INVALID
    for value in (1, GATE_K - 1):
        yield f"activation_pitch={value}", with_field(fields["activation_pitch"], value), INVALID
    yield "rows=33", request(rows=33), INVALID
    yield "rows=64", request(rows=64), INVALID

    lengths = (0, 1, ROW - 1, ROW + 1, ROW - 2, ROW + 2, 2 * ROW, 640 * 2)  # 640: padded K
    for length in lengths:
        message = request()
        message.activations = bytes(length)
        yield f"activations of {length} bytes", message, INVALID
    for rows, length in itertools.product((0, 1), (0, ROW)):
        if (rows, length) != (1, ROW):
            message = request()
            message.rows, message.activations = rows, bytes(length)
            yield f"rows={rows}, {length} bytes", message, INVALID

    for shards, code in (([], INVALID), ([""], INVALID), (["ffn"], "NOT_FOUND"),
                         (["models/small/shards/"], "NOT_FOUND"),
                         (["models//shards/x"], "NOT_FOUND"),
                         (["models/small/shards/../../etc/passwd"], "NOT_FOUND"),
                         (["models/small/shards/none"], "NOT_FOUND"),
                         (["models/other/shards/layers.0.ffn_gate"], "NOT_FOUND"),
                         ([GATE, "models/small/shards/layers.0.ssm_out"], INVALID),  # other K
                         ([GATE] * 17, INVALID)):
        message = request()
        del message.shards[:]
        message.shards.extend(shards)
        yield f"shards={','.join(shards)[:60]} ({len(shards)})", message, code
    message = request()
    message.call_id = "x" * 129
    yield "call_id of 129 bytes", message, INVALID

    valid = request().SerializeToString()
    yield "declared length 2^62", valid + b"\x2a" + varint(1 << 62), INVALID
    yield "declared length 2^64 - 1", valid + b"\x2a" + varint(-1), INVALID
    yield "unfinished varint", valid + b"\x18\xff", INVALID
    yield "field number 0", valid + b"\x00\x01", INVALID
    yield "group that never ends", valid + b"\x0b", INVALID
    yield "a shard name that is no UTF-8", valid + b"\x12\x02\xff\xfe", INVALID
    for cut in range(1, len(valid) - ROW, 3):
        yield f"prefix of {cut} bytes", valid[:cut], INVALID
    for cut in range(len(valid) - ROW + 1, len(valid), 97):
        yield f"prefix of {cut} bytes", valid[:cut], INVALID


def run(node):
    """(name, code, expected) of every call; the node must still serve after each tenth."""
    channel = node.channel()
    reference = project(channel, request()).outputs[0].data
    for index, (name, message, expected) in enumerate(corpus()):
        yield name, code_of(project, channel, message).name, expected
        if index % 10 == 0 and project(channel, request()).outputs[0].data != reference:
            raise AssertionError(f"after {name}: another answer to a good call")


def main():
    with Node() as node:
        for name, code, _ in run(node):
            print(name, code)


if __name__ == "__main__":
    main()
