"""A GPU as a device, through the CUDA driver API."""
