import os

os.environ["KOPS_INTERPRET"] = "1"

import numpy as np
from kops import load_inline  # noqa: F401

x = np.arange(1000, dtype="float32")
m = x.reshape(20, 50) / 1000
