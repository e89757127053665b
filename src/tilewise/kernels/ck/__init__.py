"""CK Tile's kernels: names, the rules of each arch, and the formats in which people keep instances."""
