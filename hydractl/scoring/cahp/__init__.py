"""CAHP: groups heads by how well they separate classes."""
