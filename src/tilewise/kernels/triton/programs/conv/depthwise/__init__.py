"""The programs that filter channels without a matrix product, one module per pipeline."""
