"""PostgreSQL, an S3-compatible store and an MLflow server over both, from the extra ``servers`` alone: no containers.

``python -m tilewise.servers`` runs them; :func:`tilewise.servers.stack.run` is the same for tests.
"""
