"""What a measurement table holds, in tables and plots: for people, no step of the pipeline."""
