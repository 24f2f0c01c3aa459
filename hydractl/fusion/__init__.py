"""The fuse plan and the fused runtime."""
