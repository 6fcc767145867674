"""The pipeline's tables: Parquet files under a manifest, with writer, readers and SQL.

A file never changes once the manifest names it, and one rename replaces the manifest. So readers
see a commit as a whole or not at all, and a killed writer leaves only files that no manifest names.
"""

from stormkeeper import extras

extras.require("spark", "the table store", "pyarrow", "duckdb")
