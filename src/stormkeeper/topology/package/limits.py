"""How large a package may be; pure.

Whoever makes one is told before it is uploaded. Whoever reads one is safe from one that was made to
fill a disk.
"""

from __future__ import annotations

from typing import Final

#: Files. A folder of vendored packages has some thousands. Each file costs a reader about a
#: kilobyte of memory and a supervisor a call to the disk.
MAX_FILES: Final = 10_000

#: Bytes of all files. The largest wheels that Spark's users bring have 1 GB. From 2 GiB on Python
#: writes a zip with extensions of the format, which readers can so refuse.
MAX_BYTES: Final = 2_000_000_000

#: How many times as large as the zip its files may be. Code and text shrink to a fifth, and tables
#: to a fiftieth. A small upload must not fill the disks of all supervisors.
MAX_RATIO: Final = 100

#: Below so many bytes the ratio does not matter: a file of zeros is no danger then.
FREE_BYTES: Final = 16 * 1024**2

#: Bytes of the manifest: the names and checksums of so many files, and what stands beside them.
MAX_MANIFEST_BYTES: Final = 8 * 1024**2


def fault(files: int, unpacked: int, packed: int | None = None) -> str | None:
    """Return what is too much, None where nothing is.

    Parameters
    ----------
    files
        How many there are.
    unpacked, packed
        Bytes of all of them, and of the zip, once that is known.
    """
    if files > MAX_FILES:
        return f"it has {files:,} files, and may have {MAX_FILES:,}"
    if unpacked > MAX_BYTES:
        return f"its files have {unpacked:,} bytes, and may have {MAX_BYTES:,}"
    if packed is not None and unpacked > max(FREE_BYTES, MAX_RATIO * packed):
        return (
            f"its files have {unpacked:,} bytes, and may have {MAX_RATIO} times the "
            f"{packed:,} bytes of the zip"
        )
    return None
