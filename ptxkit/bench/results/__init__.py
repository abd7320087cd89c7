"""Results of measurements as values: their JSON, comparison with earlier results, and expectations."""
