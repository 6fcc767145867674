"""A topology's package: one zip with everything that a machine needs to run the topology.

The submitter's machine makes the package; no other machine runs code of the user before a worker
does. The zip holds::

    manifest.json        a `manifest.PackageManifest`: everything below, with sizes and checksums
    description.json     a `stormkeeper.topology.description.Description`
    code/…               first in ``sys.path``; contains the script that runs
    py-files/…           modules and archives of modules, also for Spark's executors
    jars/…               for the JVM's class path
    wheels/…             of the requirements, for machines without an index
"""
