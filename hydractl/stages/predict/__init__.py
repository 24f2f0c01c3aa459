"""predict: write labels, confidence and OOD scores of inputs."""
