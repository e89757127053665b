"""Whole networks with tilewise and with PyTorch alone, side by side."""
