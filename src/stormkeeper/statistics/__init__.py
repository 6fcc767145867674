"""Storm's windowed statistics for Nimbus's summaries and pages; pure.

Results have the field names of Storm's Thrift structs.
"""
