"""Settings for all tests: property tests try the same few examples every time, and torch uses one thread."""

import gc

import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other are slower than one
gc.set_threshold(100_000, 50, 100)  # graphs are many small objects that live long: looking for cycles took an eighth

settings.register_profile("house", derandomize=True, max_examples=100, deadline=None, database=None)
settings.load_profile("house")
