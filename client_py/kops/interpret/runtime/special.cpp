// Mathematical functions that the C library lacks, computed in long double.
#include "../include/kops_host/interface.h"

#include <cmath>

namespace
{

const long double ROOT_OF_PI = 1.772453850905516027298167483341145183L,
                  ROOT_OF_TWO = 1.414213562373095048801688724209698079L;

long double scaled_erfc(long double x)
{
    if (x < 50)
        return std::exp(x * x) * std::erfc(x);
    long double square = 1 / (2 * x * x); // the first terms of the asymptotic series
    return (1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square)))) / (x * ROOT_OF_PI);
}

// By Newton's method for the logarithm of erfc(x), where that is at most 1/2.
long double inverse_of_small_erfc(long double y)
{
    long double wanted = std::log(y), x = std::sqrt(-wanted);
    for (int i = 0; i < 60; i++) {
        // erfc is largest at the begin and shrinks faster than any number: its logarithm stays exact by its scaled
        // form.
        long double scaled = scaled_erfc(x), step = (std::log(scaled) - x * x - wanted) * ROOT_OF_PI * scaled / 2;
        x += step;
        if (std::fabs(step) <= std::fabs(x) * 1e-19L)
            break;
    }
    return x;
}

long double inverse_of_erf(long double y)
{
    if (!(std::fabs(y) < 1))
        return std::fabs(y) == 1 ? y * HUGE_VALL : NAN;
    if (std::fabs(y) > 0.5L)
        return std::copysign(inverse_of_small_erfc(1 - std::fabs(y)), y);
    long double x = y * ROOT_OF_PI / 2;
    for (int i = 0; i < 8 && x != 0; i++)
        x -= (std::erf(x) - y) * ROOT_OF_PI / 2 * std::exp(x * x);
    return x;
}

long double inverse_of_erfc(long double y)
{
    if (!(y >= 0 && y <= 2))
        return NAN;
    if (y == 0 || y == 2)
        return y == 0 ? HUGE_VALL : -HUGE_VALL;
    return y <= 0.5L ? inverse_of_small_erfc(y) : y >= 1.5L ? -inverse_of_small_erfc(2 - y) : inverse_of_erf(1 - y);
}

// The modified Bessel function of order 0 or 1, by its series: all terms are positive.
long double bessel_i(int order, long double x)
{
    long double quarter = x * x / 4, term = order ? x / 2 : 1, sum = term;
    if (!(std::fabs(x) < 800)) // where a double holds none
        return order && x < 0 ? -HUGE_VALL : x != x ? x : HUGE_VALL;
    for (int k = 1; std::fabs(term) > std::fabs(sum) * 1e-20L; k++) {
        term *= quarter / k / (k + order);
        sum += term;
    }
    return sum;
}

} // namespace

extern "C" double kops_host_special(unsigned function, double x)
{
    switch (function) {
    case KOPS_HOST_ERFINV:
        return double(inverse_of_erf(x));
    case KOPS_HOST_ERFCINV:
        return double(inverse_of_erfc(x));
    case KOPS_HOST_ERFCX:
        return double(scaled_erfc(x));
    case KOPS_HOST_NORMCDF:
        return double(std::erfc(-(x / ROOT_OF_TWO)) / 2);
    case KOPS_HOST_NORMCDFINV:
        return double(-ROOT_OF_TWO * inverse_of_erfc(2 * (long double)x));
    default:
        return double(bessel_i(function == KOPS_HOST_BESSEL_I1, x));
    }
}
