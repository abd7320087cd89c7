"""What a measurement found, as values: their JSON, comparison with earlier ones, and expectations."""
