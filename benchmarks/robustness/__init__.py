"""Long stress tests: readers on damaged files, and a registry whose processes are killed."""
