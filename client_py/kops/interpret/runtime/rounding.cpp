// Arithmetic with directed rounding: the processor's, with its mode changed for one operation.
#include "../include/kops_host/interface.h"

#include <cfenv>
#include <cmath>

namespace
{

const int MODES[] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};

// Operands and results are volatile, so that nothing is computed before the mode is set or after it is set back.
template <typename T, typename F> T rounded(unsigned mode, F operation)
{
    std::fesetround(MODES[mode]);
    volatile T result = operation();
    std::fesetround(FE_TONEAREST);
    return result;
}

template <typename T> T compute(unsigned op, unsigned mode, T a, T b, T c)
{
    volatile T x = a, y = b, z = c;
    switch (op) {
    case KOPS_HOST_SUM_OF:
        return rounded<T>(mode, [&] { return x + y; });
    case KOPS_HOST_DIFFERENCE_OF:
        return rounded<T>(mode, [&] { return x - y; });
    case KOPS_HOST_PRODUCT_OF:
        return rounded<T>(mode, [&] { return x * y; });
    case KOPS_HOST_QUOTIENT_OF:
        return rounded<T>(mode, [&] { return x / y; });
    case KOPS_HOST_ROOT_OF:
        return rounded<T>(mode, [&] { return std::sqrt(x); });
    default:
        return rounded<T>(mode, [&] { return std::fma(x, y, z); });
    }
}

template <typename T, typename From> T converted(unsigned mode, From value)
{
    volatile From x = value;
    return rounded<T>(mode, [&] { return T(x); });
}

} // namespace

extern "C" {

float kops_host_compute_float(unsigned op, unsigned mode, float a, float b, float c)
{
    return compute(op, mode, a, b, c);
}

double kops_host_compute_double(unsigned op, unsigned mode, double a, double b, double c)
{
    return compute(op, mode, a, b, c);
}

float kops_host_float_of(unsigned mode, double value)
{
    return converted<float>(mode, value);
}

float kops_host_float_of_signed(unsigned mode, long long value)
{
    return converted<float>(mode, value);
}

float kops_host_float_of_unsigned(unsigned mode, unsigned long long value)
{
    return converted<float>(mode, value);
}

double kops_host_double_of_signed(unsigned mode, long long value)
{
    return converted<double>(mode, value);
}

double kops_host_double_of_unsigned(unsigned mode, unsigned long long value)
{
    return converted<double>(mode, value);
}
}
