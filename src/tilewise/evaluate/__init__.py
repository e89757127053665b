"""Judging a model by measurements: metrics, noise ceiling, holdout, plots, reports."""
