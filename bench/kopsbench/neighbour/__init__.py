"""Users of one daemon, each a process of an ordinary uid: one that works and checks every answer, others that do their worst."""
