"""fuse: M members become one hydra."""
