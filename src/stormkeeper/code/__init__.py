"""Blobs, such as the code of topologies, on a Nimbus's disk.

===============  =================================================================================
``keys``         which names blobs may have, and which blobs are a topology's
``blobs``        the blobs on a disk, each with the record of what is in it
``drafts``       bytes on their way to become a blob, which nobody sees before they are whole
``crc32c``       the number that Storm's clients take for a blob's version
``sessions``     what is under way in several calls, and ends when it is left idle
``inbox``        files that Storm's clients upload before they submit a topology
===============  =================================================================================
"""
