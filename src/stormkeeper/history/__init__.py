"""The pipeline's tables: Parquet files under a manifest, with writer, readers and SQL.

Files never change once the manifest names them, and one rename replaces the manifest. So readers
see a whole commit or none, and a killed writer leaves only unnamed files.
"""

from stormkeeper import extras

extras.require("spark", "the table store", "pyarrow", "duckdb")
