"""lineage: shows and verifies the files and stages that made a model."""
