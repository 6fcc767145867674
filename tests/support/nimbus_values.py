"""Values of the types in ``nimbus_ids``: plain ones, and the records of ours that mean the same."""

import itertools

from stormkeeper.thrift import nimbus, records
from support import nimbus_ids


def cls_of(name):
    """Return our class of a struct or an enum."""
    return getattr(nimbus, name, None) or getattr(records, name)


class Samples:
    """Makes plain values, no two alike.

    Parameters
    ----------
    full
        Whether structs have all of their fields, and not those alone that they must have.
    """

    def __init__(self, *, full):
        self._full = full
        self._numbers = itertools.count(1)

    def of(self, kind):
        number = next(self._numbers)
        if kind in nimbus_ids.ENUMS:
            members = list(nimbus_ids.ENUMS[kind].values())
            return members[number % len(members)]
        if kind in nimbus_ids.STRUCTS:
            return self.struct(nimbus_ids.STRUCTS[kind], number)
        if isinstance(kind, tuple):
            items = [tuple(self.of(part) for part in kind[1:]) for _ in range(2)]
            return items if kind[0] == "map" else [item for (item,) in items]
        return {
            "bool": number % 2 == 0,
            "i32": -number,
            "i64": number << 33,
            "double": number / 8,
            "string": f"text {number} ü",
            "binary": bytes([number % 256, 0, 255]),
        }[kind]

    def struct(self, struct, number):
        fields = struct.fields
        if struct.kind == "union":
            fields = [fields[number % len(fields)]]
        elif not self._full:
            fields = [field for field in fields if field.mark == "!"]
        return {field.name: self.of(field.type) for field in fields}


def ours(kind, value):
    """Return our value that a plain one stands for."""
    if kind in nimbus_ids.STRUCTS:
        types = {field.name: field.type for field in nimbus_ids.STRUCTS[kind].fields}
        return cls_of(kind)(**{name: ours(types[name], item) for name, item in value.items()})
    if not isinstance(kind, tuple):
        return value
    if kind[0] == "map":
        as_key = tuple if kind[1][0] == "list" else lambda key: key
        return {as_key(ours(kind[1], key)): ours(kind[2], item) for key, item in value}
    return (set if kind[0] == "set" else list)(ours(kind[1], item) for item in value)


def in_order(kind, value):
    """Return a plain value whose sets and maps are in an order of their own, to be compared."""
    if kind in nimbus_ids.STRUCTS:
        types = {field.name: field.type for field in nimbus_ids.STRUCTS[kind].fields}
        return {name: in_order(types[name], item) for name, item in value.items()}
    if not isinstance(kind, tuple):
        return value
    if kind[0] == "map":
        pairs = [(in_order(kind[1], key), in_order(kind[2], item)) for key, item in value]
        return sorted(pairs, key=repr)
    items = [in_order(kind[1], item) for item in value]
    return sorted(items, key=repr) if kind[0] == "set" else items
