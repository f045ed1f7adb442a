"""The nouns that all other packages use, and the YAML files that they are read from.

A reading order: `workload` (an attention problem); `arch`, `arch_catalog`, `arch_file` (chips);
`trial` (configs, and what happened to them); `expr`, `tiling`, `space`, `space_file` (search
spaces); `kernel`; `target` (a chip, and a case on it). `strict_yaml` reads every file.
"""
