"""export: a model as one file that runs without hydractl."""
