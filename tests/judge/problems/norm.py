"""A problem in KernelBench's form whose model has buffers, and sizes that are tuples."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Normalises over the batch, then takes the maximum of windows."""

    def __init__(self, features, window=(2, 2)):
        super().__init__()
        self.norm = nn.BatchNorm2d(features)
        self.pool = nn.MaxPool2d(window)

    def forward(self, x, shift):
        return self.pool(self.norm(x)) + shift


batch_size = 8
features = 4
height, width = (16, 12)
window = (2, 3)


def get_inputs():
    return [torch.randn(batch_size, features, height, width), 1.5]


def get_init_inputs():
    return [[], {"features": features, "window": window}]
