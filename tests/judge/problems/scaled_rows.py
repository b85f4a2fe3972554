"""A problem in KernelBench's form: a linear layer, scaled, its rows summed."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Multiplies by a matrix, adds a bias, scales, sums each row."""

    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x):
        return torch.sum(self.gemm(x) * self.scale, dim=1, keepdim=True)


batch_size = 64
in_features = 128 * 2
out_features = 96
scale = 0.5


def get_inputs():
    return [torch.rand(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, scale]
