"""Metrics and OOD scores: functions of tensors that return numbers."""
