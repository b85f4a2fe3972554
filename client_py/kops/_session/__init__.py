"""One connection to a daemon: the plain MessagePack session over the socket, and libkops' in its place."""
