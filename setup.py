"""Builds the compiled engine of the Pacemaker; everything else is in pyproject.toml.

The module is optional: without a C compiler or Python's headers the install goes through, and the
Pacemaker runs in plain Python. It is made of system calls of Linux, and is not tried elsewhere.
"""

import sys

from setuptools import Extension, setup

MODULE = "stormkeeper.pacemaker.server._compiled"

setup(
    ext_modules=[
        Extension(
            MODULE,
            [f"src/{MODULE.replace('.', '/')}.pyx"],
            extra_compile_args=["-g0"],
            optional=True,
        )
    ]
    if sys.platform == "linux"
    else []
)
