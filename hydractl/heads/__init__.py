"""Which heads stay: pure functions over scores and masks."""
