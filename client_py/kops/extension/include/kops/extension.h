// Everything that torch/extension.h and the headers beside it declare.
#pragma once
#include <kops/bind.h>
#include <kops/cublas.h>
#include <kops/dispatch.h>

#include <cassert>
#include <cfloat>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>
#include <unordered_set>
