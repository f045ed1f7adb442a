"""A compiled kernel starts on tensors: the driver, its arguments, prepared launches."""
