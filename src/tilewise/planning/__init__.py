"""What to measure next: which problems, and which of their kernels, within a budget of seconds."""
