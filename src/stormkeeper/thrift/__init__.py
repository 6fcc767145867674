"""Storm's records: classes from the IDL files, encoding, compression, and text for people.

Nothing is imported here, as `records`, `pacemaker` and `nimbus` take time to load.
"""
