"""Data as it is when something is wrong with it: how well a model keeps up."""
