"""predict: writes labels, confidence and OOD scores of inputs."""
