"""The engine: loads modules, divides launches into waves of CTAs, and schedules the threads of a wave."""
