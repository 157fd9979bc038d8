"""The audit: what the paper claims, recomputed."""
