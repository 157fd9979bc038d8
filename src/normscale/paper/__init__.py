"""The norm-scaling paper: its tables and claims, their audit, its benchmark presets, and its share of a report.

Nothing below this room knows it: :mod:`normscale.experiments` and :mod:`normscale.report` serve any classifier.
"""
