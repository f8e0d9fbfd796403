#!/usr/bin/env python3
# The wire as it is in clients' hands: no field, enum value or method that there was changes its number,
# its type or its name, so that a client of an earlier revision and a node of this one understand each
# other. wire.txt lists all of them; `test_wire.py --write` adds what is new to it. Case P010.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys
import unittest

import node  # noqa: F401  puts the generated modules on the path
from fulcrum.v1 import (lever_service_pb2, node_config_pb2, projection_service_pb2, shard_service_pb2,
                        types_pb2)

BOOK = pathlib.Path(__file__).with_name("wire.txt")
MODULES = (types_pb2, projection_service_pb2, shard_service_pb2, lever_service_pb2, node_config_pb2)
TYPES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string",
         12: "bytes", 13: "uint32"}


def type_of(field):
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return f"map of {field.message_type.fields_by_name['value'].type}"
        return field.message_type.full_name
    return field.enum_type.full_name if field.enum_type is not None else TYPES[field.type]


def of_message(message):
    for field in message.fields:
        repeated = "repeated " if field.label == field.LABEL_REPEATED else ""
        oneof = field.containing_oneof
        within = f" in {oneof.name}" if oneof is not None and len(oneof.fields) > 1 else ""
        yield f"{field.full_name} = {field.number}: {repeated}{type_of(field)}{within}"
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from of_message(nested)
    for enum in message.enum_types:
        yield from of_enum(enum)


def of_enum(enum):
    for value in enum.values:
        yield f"{enum.full_name}.{value.name} = {value.number}"


def wire():
    """A line for everything that clients and configurations of other revisions rely on."""
    for module in MODULES:
        file = module.DESCRIPTOR
        for enum in file.enum_types_by_name.values():
            yield from of_enum(enum)
        for message in file.message_types_by_name.values():
            yield from of_message(message)
        for service in file.services_by_name.values():
            for method in service.methods:
                yield (f"{service.full_name}/{method.name}: {method.input_type.full_name} -> "
                       f"{method.output_type.full_name}")


class Wire(unittest.TestCase):
    maxDiff = None

    def test_what_clients_rely_on_stays_as_it_is(self):  # P010
        now, before = set(wire()), set(BOOK.read_text().splitlines())
        self.assertGreater(len(before), 200)
        self.assertEqual(sorted(before - now), [], "gone or changed: give a new field a new number")
        self.assertEqual(sorted(now - before), [], "new: test_wire.py --write lists it from now on")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        known = BOOK.read_text().splitlines() if BOOK.exists() else []
        BOOK.write_text("\n".join(sorted({*known, *wire()})) + "\n")
    else:
        unittest.main()
