"""Storm's records: classes from the IDL files, their encoding, compression, and text for people.

`records`, `pacemaker` and `nimbus` hold the classes. Nothing is imported here, since each of them
takes time to load.
"""
