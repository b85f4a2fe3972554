"""From arrays of any framework to references that travel, and back."""
