"""Training, data sets, experiments, reports, and the paper."""
