"""The package's version, and that of the protocol that it speaks."""

VERSION = "0.1.0"
PROTOCOL = 1
