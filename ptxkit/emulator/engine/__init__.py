"""The engine: from PTX to blocks of numpy calls, and the scheduler that executes them warp by warp."""
