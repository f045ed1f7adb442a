"""The nouns and their files: workloads, chips, kernels and their spaces, configs, trials."""
