"""Blobs, such as the code of topologies: stored on the Nimbuses and copied between them.

ZooKeeper counts a blob's versions: of two uploads at once, on any Nimbuses, the first to end gets
the next number. Each holder writes the number and the SHA-256 of its version to ZooKeeper, so every
copy is checked against the upload, whatever Nimbus sends it.
"""
