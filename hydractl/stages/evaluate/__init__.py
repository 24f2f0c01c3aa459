"""eval: measure accuracy, calibration, OOD detection, diversity and cost."""
