"""What a kernel description is made of, and how one is resolved, built, executed and verified."""
