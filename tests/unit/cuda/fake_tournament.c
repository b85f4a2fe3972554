/* Owns nothing: the device is the test's. */
#include "fake_tournament.h"

#include "tests/support/unit.h"

static const uint64_t BUDGET_NS = 800 * 1000 * 1000;

enum { EXECUTIONS_MAX = 64 };

static double next_noise(struct fake *f, unsigned i)
{
    const double part = f->noisier > 0 && i + 1 == f->r.n ? f->noisier : f->noise;

    f->random = f->random * 6364136223846793005U + 1442695040888963407U;
    return 1 + part * ((double)(f->random >> 11) * 0x1p-52 - 1);
}

static int begin(struct fake *f, unsigned i, struct error *e)
{
    f->now_ns += (uint64_t)(1e3 * f->wait_us);
    if (f->cancel && f->n_measured + 1 > f->cancel)
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    if (i + 1 == f->fails)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it cannot");
    f->n_measured++;
    if (!f->measured[i]++)
        f->order[f->n_order++] = i;
    return 0;
}

static double in_a_row(struct fake *f, unsigned i, double guess_us, double slice_us)
{
    const double fit = slice_us / guess_us, us = f->us[i] * next_noise(f, i);
    const unsigned n = fit < 1 ? 1 : fit > EXECUTIONS_MAX ? EXECUTIONS_MAX : (unsigned)fit;

    f->now_ns += (uint64_t)(1e3 * us * n);
    return us;
}

static int first(void *context, const struct tuning_choice *choice, double slice_us, double *ret_us, bool *ret_rough,
                 struct error *e)
{
    struct fake *f = context;
    const unsigned i = choice->workspace_bytes;

    if (begin(f, i, e) < 0)
        return -1;
    assert_int_equal(f->measured[i], 1);
    f->now_ns += (uint64_t)(1e3 * (f->us[i] + f->load_us));
    *ret_rough = f->us[i] > TOURNAMENT_LONG_US;
    *ret_us = *ret_rough ? f->us[i] * next_noise(f, i) + f->overlap_us : in_a_row(f, i, f->us[i], slice_us);
    return 0;
}

static int measure(void *context, const struct tuning_choice *choice, double guess_us, double slice_us, double *ret_us,
                   struct error *e)
{
    struct fake *f = context;

    if (begin(f, choice->workspace_bytes, e) < 0)
        return -1;
    assert_true(guess_us > 0);
    *ret_us = in_a_row(f, choice->workspace_bytes, guess_us, slice_us);
    return 0;
}

static bool ends_all(void *context, const struct error *why)
{
    return why->code == ERROR_CANCELLED;
}

static uint64_t now_ns(void *context)
{
    return ((struct fake *)context)->now_ns;
}

static double pause_ns(void *context)
{
    const struct fake *f = context;

    return f->patient || !f->n_measured ? 0 : 1e3 * f->wait_us;
}

struct fake fake_of(unsigned library, unsigned own, double us)
{
    static unsigned seed;
    struct fake f = {.r = {.n = library + own}, .noise = 0.004, .wait_us = WAIT_US, .random = ++seed};

    for (unsigned i = 0; i < f.r.n; i++) {
        f.r.candidates[i].choice.workspace_bytes = i; /* its number */
        f.r.candidates[i].choice.has_algorithm = i < library;
        f.us[i] = us;
    }
    return f;
}

int run(struct fake *f, struct error *e)
{
    const struct tournament t = {first,     measure, ends_all, now_ns, pause_ns, f, f->now_ns, f->now_ns + BUDGET_NS,
                                 f->patient};

    return tournament_run(&t, &f->r, e);
}

double took_ms(const struct fake *f)
{
    return (double)f->now_ns * 1e-6;
}
