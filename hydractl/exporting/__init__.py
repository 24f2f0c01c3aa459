"""Models as files of other runtimes: ONNX, torch.export, and a script that runs them."""
