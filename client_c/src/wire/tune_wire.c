#include "tune_wire.h"

#include "wire_begin.h"
#include "wire_read.h"

/* ---- requests ---- */

static void pack_tensors(struct bytes *b, const char *key, const struct native_tensor *tensors, unsigned n)
{
    mp_text(b, key);
    mp_array(b, n);
    for (unsigned i = 0; i < n; i++)
        wire_gather_tensor(b, &tensors[i]);
}

void wire_pack_tune(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_tune *w = request;

    WIRE_BEGIN(out, msgid, "tune");
    mp_map(out, 3 + (w->n_attrs ? 1U : 0U) + (w->device ? 1U : 0U));
    mp_pair_text(out, "op", w->op);
    pack_tensors(out, "in", w->tensors, w->n_inputs);
    pack_tensors(out, "out", w->tensors + w->n_inputs, w->n_outputs);
    if (w->n_attrs) {
        mp_key(out, "attrs");
        wire_pack_attrs(out, w->attrs, w->n_attrs, NULL);
    }
    if (w->device) {
        mp_key(out, "device");
        wire_pack_device(out, w->device);
    }
}

void wire_pack_tuning(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_tuning *w = request;

    WIRE_BEGIN(out, msgid, "tuning");
    mp_map(out, (w->from ? 1U : 0U) + (w->clear ? 1U : 0U));
    if (w->from)
        mp_pair_uint(out, "from", w->from);
    if (w->clear)
        mp_pair_bool(out, "clear", true);
}

/* ---- tune ---- */

#define FIELD(kind, member)  WIRE_FIELD(RECORD, kind, #member, member)
#define NEEDED(kind, member) WIRE_NEEDED(RECORD, kind, #member, member)

#define RECORD struct kops_candidate
static const struct wire_field candidate_fields[] = {FIELD(TEXT, variant), FIELD(TEXT, what), FIELD(TEXT, state),
                                                     FIELD(F64, us)};
static const struct wire_record candidate_record = WIRE_RECORD(RECORD, candidate_fields);
#undef RECORD

#define RECORD struct kops_tune
static const struct wire_field tune_fields[] = {
    FIELD(TEXT, device),  FIELD(TEXT, machine),
    FIELD(TEXT, problem), WIRE_NESTED(RECORD, LIST, "candidates", candidates, candidate_record),
    NEEDED(UINT, best),   NEEDED(UINT, before),
    NEEDED(UINT, usual),  FIELD(F64, noise),
    FIELD(F64, took_us),  FIELD(UINT, tried),
    FIELD(BOOL, goes_on),
};
static const struct wire_record tune_record = WIRE_RECORD(RECORD, tune_fields);
#undef RECORD

/* A number of a candidate that there is not makes the reply a bad one: callers use it as an index. */
bool wire_decode_tune(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_tuned *w = into;
    struct kops_tune *t = &w->tune;

    (void)fds;
    (void)nfds;
    if (!wire_read(&w->arena, result, &tune_record, t))
        return false;
    t->n_candidates = 0;
    while (t->candidates[t->n_candidates])
        t->n_candidates++;
    return t->best < t->n_candidates && t->before < t->n_candidates && t->usual < t->n_candidates;
}

/* ---- tuning ---- */

#define RECORD struct kops_choice
static const struct wire_field choice_fields[] = {
    FIELD(TEXT, machine), FIELD(TEXT, problem), FIELD(TEXT, variant),    FIELD(TEXT, what),
    FIELD(F64, us),       FIELD(TEXT, usual),   FIELD(F64, usual_us),    FIELD(F64, noise),
    FIELD(F64, at),       FIELD(UINT, tried),   FIELD(UINT, candidates),
};
static const struct wire_record choice_record = WIRE_RECORD(RECORD, choice_fields);
#undef RECORD

bool wire_decode_tuning(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_NESTED(struct kops_tuning, LIST, "choices", choices, choice_record),
        WIRE_NEEDED(struct kops_tuning, U64, "total", total),
    };
    static const struct wire_record record = WIRE_RECORD(struct kops_tuning, fields);
    struct wire_choices *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &record, &w->tuning);
}
