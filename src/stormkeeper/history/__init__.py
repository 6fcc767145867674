"""The pipeline's tables: Parquet files under a manifest, with writer, readers and SQL.

::

    <folder>/manifest.json
    <folder>/worker_events/000000000041-5f0c12ab.parquet
    <folder>/rollup_10m/000000000007-90aa3be1.parquet

A file never changes once the manifest names it, and one rename replaces the manifest. So readers
see a commit as a whole or not at all, and a killed writer leaves only files that no manifest names.
Spark is not needed. The file system must rename a file atomically: every local one does, and NFS.
"""

from stormkeeper import extras

extras.require("spark", "the table store", "pyarrow", "duckdb")
