"""A topology's package: one zip with all that a machine of the cluster needs to run a topology.

It is made on the submitter's machine and read on the others, where no user's code runs before a
worker does.

==================  ================================================================================
``limits``          how large it may be, and why
``ignoring``        which files of a folder stay behind
``collecting``      the code: of a script, a folder or a wheel
``wheel``           a wheel as a folder of code
``requirements``    what a ``requirements.txt`` asks for, and what it may not
``pinning``         the versions that pip chooses for it
``gathering``       the wheels of these, for machines that cannot fetch them
``environment``     the identity of an environment: what is installed, over what
``manifest``        what is in a package, as JSON
``writing``         makes the zip; the same bytes of the same input
``reading``         reads it, and believes nothing
``unpacking``       lays it out as a folder, whole or not at all
==================  ================================================================================

The zip holds::

    manifest.json        a `manifest.Manifest`: everything below, with sizes and checksums
    description.json     a `stormkeeper.topology.description.Description`
    code/…               first in ``sys.path``; the script that runs is in it
    py-files/…           modules and archives of modules, for Spark's executors too
    jars/…               for the JVM's class path
    wheels/…             of the requirements, for machines without an index
"""
