#!/usr/bin/env python3
"""What CubeCL recorded of its own work in a folder of kept kernels: compiled kernels and tuned operations.

    python3 records.py FOLDER               # the database of --kernel-cache; the default is ~/.cache/cubecl

Source: the records of CubeCL 0.11, in CBOR (RFC 8949), beside the kernels in a database of SQLite.
"""

import pathlib
import sqlite3
import struct
import sys
from typing import NamedTuple

COMPILED, TUNED = "records/v1/compilation", "records/v1/autotune"
# Lines for each kind of work.
SHOWN = 10


class Work(NamedTuple):
    """A kernel that was compiled, or an operation that was tuned by compiling and timing kernels."""

    name: str
    seconds: float


class Unreadable(Exception):
    """A database that is damaged or of another version, by name."""


def read(folder):
    """Kernels and operations of the databases of a folder, the longest first."""
    kernels, operations = [], []
    for path in sorted(pathlib.Path(folder).glob("*.db")):
        try:
            add(kernels, operations, rows(path))
        except (IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise Unreadable(f"records in another form than that of CubeCL 0.11 in {path}: {error!r}") from error
    return [sorted(work, key=lambda one: -one.seconds) for work in (kernels, operations)]


def add(kernels, operations, rows):
    for namespace, value in rows:
        record = decode(value)["record"]
        if namespace == COMPILED and record["outcome"] == "Compiled":
            kernels.append(Work(record["kernel"].split("<")[0], seconds(record["duration"])))
        elif namespace == TUNED and record["stored"]:
            operations.append(Work(record["table"].split("/")[-1], seconds(record["wall"])))


def rows(path):
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        query = "select namespace, value from entries where namespace in (?, ?)"
        return database.execute(query, (COMPILED, TUNED)).fetchall()
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return []  # Nothing was recorded, or by another version.
        raise Unreadable(f"the database {path} is damaged or cannot be opened: {error}") from error


def summary(folder):
    """One line; None without records."""
    try:
        kernels, operations = read(folder)
    except Unreadable as error:
        return str(error)
    parts = [
        f"{len(work)} {name} in {sum(one.seconds for one in work):.1f} s, the longest in {work[0].seconds:.1f} s"
        for name, work in [("kernels compiled", kernels), ("operations tuned", operations)]
        if work
    ]
    return "; ".join(parts) or None


def seconds(duration):
    return duration["secs"] + duration["nanos"] / 1e9


def decode(data):
    return item(data, 0)[0]


def item(data, at):
    """The CBOR data item at an offset, and the offset after it."""
    kind, info = data[at] >> 5, data[at] & 31
    at += 1
    if kind == 7 and info < 24:
        return {20: False, 21: True}.get(info), at
    size = 0 if info < 24 else 1 << (info - 24)
    number, at = info if size == 0 else int.from_bytes(data[at : at + size], "big"), at + size
    if kind == 7:
        form = {2: ">e", 4: ">f", 8: ">d"}[size]
        return struct.unpack(form, data[at - size : at])[0], at
    if kind in (0, 1):
        return (number if kind == 0 else -1 - number), at
    if kind in (2, 3):
        text = data[at : at + number]
        return (text if kind == 2 else text.decode()), at + number
    if kind == 6:  # A tag.
        return item(data, at)
    values = []
    for _ in range(number * (1 if kind == 4 else 2)):
        value, at = item(data, at)
        values.append(value)
    return (values if kind == 4 else dict(zip(map(str, values[::2]), values[1::2]))), at


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path.home() / ".cache/cubecl"
    try:
        kernels, operations = read(folder)
    except Unreadable as error:
        sys.exit(str(error))
    print(summary(folder) or f"no records in {folder}")
    for name, work in [("kernels", kernels), ("operations", operations)]:
        for one in work[:SHOWN]:
            print(f"{one.seconds:8.2f} s  {name}  {one.name}")


if __name__ == "__main__":
    main()
