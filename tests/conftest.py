import torch
from hypothesis import settings

settings.register_profile("laws", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("laws")
torch.set_num_threads(1)  # the matrices of the tests are tiny, and the suite runs in parallel processes
