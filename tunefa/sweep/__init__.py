"""A sweep: many workloads, on all GPUs there are, within one budget."""
