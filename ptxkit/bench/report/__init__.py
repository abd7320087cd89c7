"""Results as tables, CSV and plots."""
