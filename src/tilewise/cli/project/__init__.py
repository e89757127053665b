"""The verb that lays out a project around an op of the user's own, and its templates.

Internal to the command line: it exports nothing.
"""
