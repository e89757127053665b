"""Search for a problem's best configuration beyond the pool, with a trained model in the place of measurements."""
