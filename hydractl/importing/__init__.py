"""Import of weights of training scripts: files, recognition of the architecture, and tensor names."""
