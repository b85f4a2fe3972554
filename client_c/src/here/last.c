#include "last.h"

#include <string.h>

static uint64_t *put_argument(uint64_t *at, const struct kops_argument *a)
{
    *at++ = (uint64_t)a->kind;
    if (a->kind == KOPS_ARG_BOOL)
        *at++ = a->value.boolean;
    else if (a->kind != KOPS_ARG_TENSOR && a->kind != KOPS_ARG_NULL)
        *at++ = a->value.natural; /* of a float its bits */
    return at;
}

static uint64_t *put_tensor(uint64_t *at, const struct here_tensor *t)
{
    *at++ = t->pointer;
    *at++ = t->bytes;
    *at++ = (uint64_t)t->rank << 32 | (uint64_t)t->dtype << 1 | (t->strides != NULL);
    for (unsigned d = 0; d < t->rank; d++)
        *at++ = (uint64_t)t->shape[d];
    for (unsigned d = 0; t->strides && d < t->rank; d++)
        *at++ = (uint64_t)t->strides[d];
    return at;
}

static uint64_t *put_dims(uint64_t *at, const struct kops_dims *d)
{
    *at++ = d->n;
    for (unsigned i = 0; i < d->n && i < 3; i++)
        *at++ = (uint64_t)d->size[i];
    return at;
}

static uint64_t *put_geometry(uint64_t *at, const struct kops_launch_geometry *g)
{
    at = put_dims(put_dims(put_dims(at, &g->grid), &g->block), &g->cluster);
    *at++ = g->has_shared;
    *at++ = g->has_shared ? g->shared : 0;
    return at;
}

void here_key_of(const struct here_call *call, struct here_key *ret)
{
    uint64_t *at = ret->words;

    ret->length = 0;
    if (call->n_args > KERNEL_MAX_PARAMS || call->n_tensors > KERNEL_MAX_TENSORS)
        return;
    *at++ = (uint64_t)(uint32_t)call->device << 32 | call->n_args << 16 | call->n_tensors;
    for (unsigned i = 0; i < call->n_args; i++)
        at = put_argument(at, &call->args[i]);
    for (unsigned i = 0; i < call->n_tensors; i++) {
        if (call->tensors[i].rank > TENSOR_MAX_RANK)
            return;
        at = put_tensor(at, &call->tensors[i]);
    }
    if (call->geometry)
        at = put_geometry(at, call->geometry);
    ret->length = (unsigned)(at - ret->words);
}

static void copy(struct here_planned *to, const struct here_planned *from)
{
    memcpy(&to->plan, &from->plan, offsetof(struct plan_kernel, params) + from->plan.param_bytes);
    memcpy(&to->shapes, &from->shapes,
           offsetof(struct here_shapes, words) + from->shapes.n_words * sizeof(from->shapes.words[0]));
}

bool here_last_find(const struct here_last *last, const struct here_key *key, struct here_planned *ret)
{
    if (!key->length || last->key.length != key->length ||
        memcmp(last->key.words, key->words, key->length * sizeof(key->words[0])) != 0)
        return false;
    copy(ret, &last->planned);
    return true;
}

void here_last_keep(struct here_last *last, const struct here_key *key, const struct here_planned *planned)
{
    last->key.length = key->length;
    memcpy(last->key.words, key->words, key->length * sizeof(key->words[0]));
    copy(&last->planned, planned);
}
