"""Growth with hosts and rows."""
