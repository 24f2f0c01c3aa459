"""Head masks and head budgets: pure functions of head importances and masks."""
