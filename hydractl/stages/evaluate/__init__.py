"""eval: measures accuracy, calibration, OOD detection, diversity and cost."""
