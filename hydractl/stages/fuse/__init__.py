"""fuse: fuses M members into a hydra."""
