"""The Pacemaker daemon: what it holds, how it answers, and the sockets around that."""
