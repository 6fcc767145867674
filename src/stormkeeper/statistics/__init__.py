"""Storm's windowed statistics for Nimbus's pages, in the fields of Storm's Thrift structs; pure."""
