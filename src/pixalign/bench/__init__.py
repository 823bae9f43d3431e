"""The benchmark: the paper's tables as specs that can be run."""
