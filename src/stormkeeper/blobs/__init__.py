"""Blobs, such as the code of topologies: kept on a Nimbus's disk, and copied to where it is needed.

===============  =================================================================================
``distributor``  `CodeDistributor`: upload, download, replication count, cleanup; what Nimbus calls
``keys``         which names blobs may have, and which blobs are a topology's
``blobs``        the blobs on a disk, each with the record of what is in it
``drafts``       bytes on their way to become a blob, which nobody sees before they are whole
``crc32c``       the number that Storm's clients take for a blob's version
``sessions``     what is under way in several calls, and ends when it is left idle
``publishing``   makes what was uploaded a blob of the cluster
``uploads``      uploads as Storm's clients make them, chunk by chunk
``inbox``        files that Storm's clients upload before they submit a topology
``downloads``    downloads as Storm's clients and other Nimbuses make them
``fetching``     fetches a blob from another Nimbus, and goes on where it was interrupted
``peers``        other Nimbuses, as blobs are fetched from them over Thrift
``delivery``     puts a topology's code into a folder, as a supervisor needs it
``planning``     decides what a Nimbus has to fetch, announce and delete, and what is missing
``sync``         the thread that does it
``replication``  waits until enough Nimbuses have a topology's code
``settings``     what is configured
===============  =================================================================================

A blob's version has a number, which rises with each upload, and which ZooKeeper counts: of two
uploads at once, on any Nimbuses, the one that ends first gets it. The number and the SHA-256 of a
version are written in ZooKeeper by whoever has it. So a copy is checked against what was uploaded,
whoever sends it.
"""
