// What of this header concerns kernels is there for every source.
#include "cuda_on_host.h"
