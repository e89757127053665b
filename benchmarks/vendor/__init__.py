"""A comparison of the pool's kernels with cuBLAS and cuDNN."""
