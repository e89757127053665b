"""Figures that the rules of several pipelines share: limits of CUDA and Triton 3.6, and thresholds of waste."""

from __future__ import annotations

MIN_DOT = 16  # tl.dot needs at least 16 along each dimension
MIN_DOT_BYTES = 32  # ... and this many bytes along K
WARPGROUP_ROWS = 64  # of a warpgroup's matrix instruction (Hopper)
BLOCK_REGISTERS = 65536  # of 32 bits, for all threads of a block; a thread has at most 255
MAX_ACCUMULATORS = 128  # registers that a thread may spend on the output tile, and at most half of those it has
INT32_ELEMENTS = 2**31  # kernels index with 32 bits
MAX_GRID_YZ = 65535  # CUDA's limit of the grid's second and third dimension
PARTIAL_BYTES = 4  # of a partial sum of split-K; a workspace consists of such
MAX_WORKSPACE_BYTES = 2**31  # of the partial sums of a split-K launch, and of copies of operands
DESCRIPTOR_BYTES = 16  # rows of a tensor descriptor begin at multiples of these
RESULT_BYTES = 2  # of an element of a matrix product's result, whatever the type of its operands
RESULT_ELEMENTS = DESCRIPTOR_BYTES // RESULT_BYTES  # ... that must divide the rows of a descriptor of results
HOPPER_SHARED_BYTES = 232448  # usable by one block; conf/arch has it too, which a launcher may not have to read
BARRIER_BYTES = 512  # of the pipelines with tensor descriptors
MAX_WASTE = 8  # times the work of the narrowest tile; more is hopeless, and slow enough to starve a sweep ...
FREE_WORK = 5e9  # ... unless the whole launch is this few padded FLOPs (some 10 us)

LOADED_ROWS = f"{RESULT_ELEMENTS} must divide the rows that descriptors load"
STORED_ROWS = f"{RESULT_ELEMENTS} must divide the rows that descriptors store"
