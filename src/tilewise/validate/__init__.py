"""Checks of a trained model on the hardware itself, and of models that nobody can check that way."""
