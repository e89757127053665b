"""The problems that are measured: layers of real networks, and synthetic ones that fill the space between them."""
