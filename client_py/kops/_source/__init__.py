"""What the text of a kernel says: its parameters, its sizes, its includes. Knows of no daemon."""
