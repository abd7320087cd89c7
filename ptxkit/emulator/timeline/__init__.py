"""Timelines: what the warps and the asynchronous operations of some CTAs do, in steps of a logical clock."""
