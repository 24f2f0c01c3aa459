"""What a way to train is that does not change every weight; `hydractl.research.methods` holds the ways."""
