"""Packages of topologies and what they are made of: scripts, wheels, zips."""

import base64
import hashlib
import io
import zipfile
from pathlib import Path

from stormkeeper.topology import description
from stormkeeper.topology.package import archive as packages
from stormkeeper.topology.package.code import collect
from stormkeeper.topology.package.manifest import Versions

MADE_WITH = Versions(python="3.11.7", stormkeeper="0.1.0", pyspark="4.3.0")

SCRIPT = "print('a script')\n"

#: A plain script that starts a query.
STREAMING = """
from pyspark.sql import SparkSession

rows = SparkSession.builder.getOrCreate().readStream.format("rate").load()
rows.writeStream.format("noop").start().awaitTermination()
"""


def tree(folder, files):
    """Write files into a folder, from {path: text or bytes}, and return the folder."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def wheel(folder, name, version, files, *, requires=(), tag="py3-none-any"):
    """Write a wheel by hand, as its standard has it, and return its path."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {required}\n" for required in requires)
    files = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    record.append(f"{info}/RECORD,,\n")
    place = Path(folder, f"{name}-{version}-{tag}.whl")
    with zipfile.ZipFile(place, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": "".join(record)}.items():
            archive.writestr(path, text)
    return place


def contents(code, **more):
    """What is packed of a plain script's code."""
    return packages.PackageContents(code, description.of_script(code.script), **more)


def of_folder(folder, **more):
    """What is packed of a folder; it gets a script if it has none."""
    if not [*folder.glob("*.py")]:
        tree(folder, {"topology.py": SCRIPT})
    return contents(collect(folder, folder), **more)


def packed(what):
    """A package, as a file in memory, and its manifest."""
    file = io.BytesIO()
    made = packages.write(file, what, MADE_WITH)
    return file, made
