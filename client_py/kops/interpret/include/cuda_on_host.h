// The language of kernels for the system's C++ compiler: included before each source.
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <math.h>
#include <stdlib.h>
#include <type_traits>
#include <utility>

#include "kops_host/interface.h"

#include "kops_host/qualifiers.h"

#include "kops_host/shifts.h"

#include "kops_host/vectors.h"

#include "kops_host/bits.h"

#include "kops_host/sync.h"

#include "kops_host/atomics.h"

#include "kops_host/mathematics.h"

#include "kops_host/simd.h"

#include "kops_host/memory.h"

#include "kops_host/entry.h"

#endif
