"""What the commands of a user do with a cluster: submit, show, change and end topologies."""
