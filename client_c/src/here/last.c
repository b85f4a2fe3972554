#include "last.h"

#include <string.h>

/* ---- the words of a call ---- */

/* Writes the words of a call, or compares them with kept words. Counts and ranks come first: they say how many words
 * follow, and calls with other counts or ranks differ in these words. */
struct walk {
    const bool writes;
    uint64_t *at;
    uint64_t differs; /* not 0: some word differs */
};

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE void look(struct walk *w, uint64_t word)
{
    if (w->writes)
        *w->at = word;
    else
        w->differs |= *w->at ^ word;
    w->at++;
}

/* Masks of the bits that count in an argument's value, by its kind. A tensor's value has none, since the tensor's own
 * words follow the arguments'. Arguments of any other kind are refused later. */
enum { N_KINDS = 8 };
static const uint64_t VALUE_MASKS[N_KINDS] = {[KOPS_ARG_INT] = UINT64_MAX,
                                              [KOPS_ARG_UINT] = UINT64_MAX,
                                              [KOPS_ARG_FLOAT] = UINT64_MAX,
                                              [KOPS_ARG_BOOL] = UINT8_MAX};

_Static_assert(sizeof(((struct kops_argument *)0)->value) == sizeof(uint64_t) && sizeof(bool) == 1 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a value is a word, and a bool its first byte");

ALWAYS_INLINE void look_at_argument(struct walk *w, const struct kops_argument *a)
{
    uint64_t value;

    memcpy(&value, &a->value, sizeof(value));
    look(w, (uint64_t)a->kind);
    look(w, value & VALUE_MASKS[a->kind % N_KINDS]);
    w->differs |= a->kind == KOPS_ARG_BYTES; /* the bytes behind the pointer may have changed */
}

ALWAYS_INLINE void look_at_sizes(struct walk *w, const int64_t *sizes, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        look(w, (uint64_t)sizes[i]);
}

ALWAYS_INLINE void look_at_tensor(struct walk *w, const struct here_tensor *t)
{
    look(w, t->pointer);
    look(w, t->bytes);
    look(w, (uint64_t)t->rank << 32 | (uint64_t)t->dtype);
    look(w, t->strides != NULL);
    look_at_sizes(w, t->shape, t->rank);
    if (t->strides)
        look_at_sizes(w, t->strides, t->rank);
}

ALWAYS_INLINE void look_at_dims(struct walk *w, const struct kops_dims *d)
{
    look(w, d->n);
    for (unsigned i = 0; i < d->n && i < 3; i++)
        look(w, (uint64_t)d->size[i]);
}

ALWAYS_INLINE void look_at_geometry(struct walk *w, const struct kops_launch_geometry *g)
{
    look_at_dims(w, &g->grid);
    look_at_dims(w, &g->block);
    look_at_dims(w, &g->cluster);
    look(w, g->has_shared);
    look(w, g->has_shared ? g->shared : 0);
}

/* Returns false where the call is too long, or differs. */
ALWAYS_INLINE bool look_at_call(struct walk *w, const struct here_call *call)
{
    if (call->n_args > KERNEL_MAX_PARAMS || call->n_tensors > KERNEL_MAX_TENSORS)
        return false;
    look(w, (uint64_t)(uint32_t)call->device << 32 | (uint64_t)(call->geometry != NULL) << 31 | call->n_args << 16 |
                call->n_tensors);
    for (unsigned i = 0; i < call->n_args; i++)
        look_at_argument(w, &call->args[i]);
    for (unsigned i = 0; i < call->n_tensors; i++) {
        if (call->tensors[i].rank > TENSOR_MAX_RANK)
            return false;
        look_at_tensor(w, &call->tensors[i]);
        if (w->differs)
            return false;
    }
    if (call->geometry)
        look_at_geometry(w, call->geometry);
    return !w->differs;
}

static bool is(struct here_last_call *kept, const struct here_call *call)
{
    struct walk w = {.writes = false, .at = kept->words};

    return kept->kept && look_at_call(&w, call);
}

struct here_last_call *here_last_find(struct here_last *last, const struct here_call *call)
{
    for (unsigned i = 0; i < LAST_CALLS; i++) {
        const unsigned at = (last->found + i) % LAST_CALLS; /* the next slot fits where calls alternate */

        if (is(&last->calls[at], call)) {
            last->found = at;
            return &last->calls[at];
        }
    }
    return NULL;
}

/* ---- keeping a call ---- */

void here_plan_copy(struct plan_kernel *to, const struct plan_kernel *from)
{
    memcpy(to, from, offsetof(struct plan_kernel, params) + from->param_bytes);
}

void here_last_keep(struct here_last *last, const struct here_call *call, const struct plan_kernel *plan,
                    const struct here_shapes *shapes)
{
    const unsigned at = (last->found + 1) % LAST_CALLS;
    struct here_last_call *kept = &last->calls[at];
    struct walk w = {.writes = true, .at = kept->words};

    kept->kept = look_at_call(&w, call);
    if (!kept->kept)
        return;
    here_plan_copy(&kept->plan, plan);
    memcpy(&kept->shapes, shapes, offsetof(struct here_shapes, words) + shapes->n_words * sizeof(shapes->words[0]));
    kept->row = (struct here_row){.generation = 0};
    last->found = at;
}

void here_last_drop(struct here_last *last)
{
    for (unsigned i = 0; i < LAST_CALLS; i++)
        last->calls[i].kept = false;
}
