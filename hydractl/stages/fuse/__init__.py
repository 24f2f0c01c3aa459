"""fuse: fuse M members into a hydra."""
