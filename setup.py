"""Builds the compiled engines; everything else is in pyproject.toml.

They are optional: without a C compiler or Python's headers the install goes through, and plain
Python runs in their place. The Pacemaker's is made of system calls of Linux, and neither is tried
elsewhere.
"""

import os
import sys

from setuptools import Extension, setup

MODULES = ["stormkeeper.pacemaker.server._compiled", "stormkeeper.pipeline.decoding._compiled"]

#: Names of functions, and how to find who called them, are a fifth of an engine's size, and for who
#: reads a sanitizer's report.
is_checked = "-fsanitize" in os.environ.get("CFLAGS", "")
COMPILED = ["-g0"] if is_checked else ["-g0", "-fno-asynchronous-unwind-tables"]
LINKED = [] if is_checked else ["-s", "-Wl,-z,noseparate-code"]

setup(
    ext_modules=[
        Extension(
            module,
            [f"src/{module.replace('.', '/')}.pyx"],
            extra_compile_args=COMPILED,
            extra_link_args=LINKED,
            optional=True,
        )
        for module in MODULES
        if sys.platform == "linux"
    ]
)
