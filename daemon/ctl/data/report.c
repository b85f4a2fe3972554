#include <math.h>

#include "reference.h"

void report_element(struct report *r, const struct tolerance *t, uint64_t at, double got, double expected, double scale)
{
    double allowed = t->rtol * fabs(expected) + t->scaled * scale + t->atol, error = fabs(got - expected);

    r->checked++;
    if (error == 0)
        return;
    if (error <= allowed) {
        if (error / allowed > r->worst)
            r->worst = error / allowed;
        return;
    }
    if (!r->wrong++) {
        r->at = at;
        r->got = got;
        r->expected = expected;
    }
    r->worst = allowed > 0 && error / allowed > r->worst ? error / allowed : r->worst > 0 ? r->worst : (double)INFINITY;
}
