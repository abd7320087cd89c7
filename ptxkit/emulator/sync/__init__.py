"""mbarriers, the threads that wait for them, and proxy fences."""
