"""Export to ONNX and torch.export, with a script for running the exported model."""
