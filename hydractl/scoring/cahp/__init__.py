"""CAHP: heads grouped by how they tell classes apart."""
