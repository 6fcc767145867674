"""`storm local`: a whole cluster on this machine; and a ZooKeeper server for development."""
