"""Settings for all tests: property tests try the same few examples every time, and torch uses one thread."""

import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other are slower than one

settings.register_profile("house", derandomize=True, max_examples=100, deadline=None, database=None)
settings.load_profile("house")
