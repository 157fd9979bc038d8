"""normscale."""
