"""From a function of PTX to the steps that the emulator runs."""
