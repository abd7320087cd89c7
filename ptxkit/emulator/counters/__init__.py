"""What a launch did: counted while it runs, and summed up per launch and per source line."""
