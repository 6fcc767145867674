"""The table store: Parquet files, and one manifest that says which of them are the tables.

==============  ==================================================================================
``specs``       what a table is: its columns, whether it is replaced or appended to, what it keeps
``manifest``    the file that names all others: its records, how it is read and replaced
``store``       ``TableStore``: the one writer of a folder
``reading``     ``Tables``: the tables as of one commit
``parquet``     rows to and from a file
``compaction``  small files become large ones, beside the writer
``retention``   which files are too old, or too many
``leftovers``   removes files that have left the manifest
``places``      the writer's folder: its lock, whether it was moved, what the disk refuses
==============  ==================================================================================

::

    <folder>/manifest.json
    <folder>/worker_events/000000000041-5f0c12ab.parquet
    <folder>/rollup_10m/000000000007-90aa3be1.parquet

A file is never changed once the manifest names it, and the manifest is replaced by one rename. So a
commit is seen as a whole or not at all, and a writer that is killed leaves only files that nobody
names. A file that has left the manifest stays for a while, for those who read it. Nothing of this
needs Spark. The file system must rename a file in one step, as every local one does, and NFS.
"""

from stormkeeper import extras

extras.require("spark", "the table store", "pyarrow")
