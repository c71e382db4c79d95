"""Settings for all tests: property tests try the same few examples every time."""

from hypothesis import settings

settings.register_profile("house", derandomize=True, max_examples=100, deadline=None, database=None)
settings.load_profile("house")
