"""Experiments on detectors: rows in, rows out."""
