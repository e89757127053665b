"""Long stress tests: readers on damaged files, and writers that faults hit."""
