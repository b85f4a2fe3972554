"""One connection to a daemon: by libkops, or in plain Python where nothing is compiled."""
