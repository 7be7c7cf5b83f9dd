"""How fast txfiles is, beside what else one could do. `python -m benchmarks --help`."""
