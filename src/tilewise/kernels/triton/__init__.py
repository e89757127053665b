"""The project's own kernels, in Triton. Importing a module here imports triton; nothing else in the package does."""
