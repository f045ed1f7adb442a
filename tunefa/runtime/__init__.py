"""The runtime: `flash_attention`, and the choice of the kernel and config that run a call."""
