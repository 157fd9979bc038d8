"""The norm-scaling paper: its tables and claims, their audit, its benchmark presets, and its share of a report.

Nothing below this room knows it: :mod:`normscale.bench.experiments` and :mod:`normscale.bench.report` serve any
classifier.
"""
