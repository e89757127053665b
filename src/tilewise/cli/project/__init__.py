"""The user's project in the command line: ops of its own, its folder of settings, and the verb that lays it out.

Modules are imported by the verbs and by `compose`. The package exports nothing.
"""
