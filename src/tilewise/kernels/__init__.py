"""What a kernel is: its name, its legality rules, the pools to choose from, and the Triton sources."""
