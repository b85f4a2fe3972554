#include "op_last.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALLS = 16, /* a step of a model runs so many ops again and again, or one op on so many buffers */
    ATTRS_MOST = 128,
    /* Of a tensor: address, length, rank and dtype, whether it has strides, shape, strides. */
    WORDS = 1 + PLAN_MAX_OPERANDS * (4 + 2 * TENSOR_MAX_RANK)
};

/* All that the rules look at. */
struct key {
    cuda_context context;
    unsigned n_words;
    size_t attrs_length;
    uint64_t words[WORDS];
    unsigned char attrs[ATTRS_MOST];
};

struct kept {
    struct key key;
    const struct op *op; /* NULL: there is none */
    cuda_function function;
    struct cuda_launch launch;
    struct here_tally *tally;
    struct here_row row;
    struct here_shapes shapes;
};

struct here_op_last {
    pthread_mutex_t lock;
    unsigned found; /* the next one is likely to be behind it */
    struct kept calls[CALLS];
};

struct here_op_last *here_op_last_new(void)
{
    struct here_op_last *l = calloc(1, sizeof(*l));

    if (l)
        pthread_mutex_init(&l->lock, NULL);
    return l;
}

struct here_op_last *here_op_last_free(struct here_op_last *l)
{
    if (l)
        pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

/* ---- keys ---- */

static uint64_t *write_sizes(uint64_t *at, const int64_t *sizes, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        *at++ = (uint64_t)sizes[i];
    return at;
}

static uint64_t *write_tensor(uint64_t *at, const struct here_tensor *t)
{
    *at++ = t->pointer;
    *at++ = t->bytes;
    *at++ = (uint64_t)t->rank << 32 | (uint64_t)t->dtype;
    *at++ = t->strides != NULL;
    at = write_sizes(at, t->shape, t->rank);
    return t->strides ? write_sizes(at, t->strides, t->rank) : at;
}

/* False: the call is too long to be kept. The words lead themselves: calls of other counts or ranks differ in the word
 * that has these. */
static bool make_key(cuda_context context, const struct here_op_call *call, struct key *ret)
{
    const unsigned n = call->n_inputs + call->n_outputs;
    uint64_t *at = ret->words;

    if (n > PLAN_MAX_OPERANDS || call->attrs_length > ATTRS_MOST)
        return false;
    *at++ = (uint64_t)(uint32_t)call->device << 32 | call->n_inputs << 8 | call->n_outputs;
    for (unsigned i = 0; i < n; i++) {
        if (call->tensors[i].rank > TENSOR_MAX_RANK)
            return false;
        at = write_tensor(at, &call->tensors[i]);
    }
    ret->context = context;
    ret->n_words = (unsigned)(at - ret->words);
    ret->attrs_length = call->attrs_length;
    if (call->attrs_length)
        memcpy(ret->attrs, call->attrs, call->attrs_length);
    return true;
}

static bool is(const struct kept *k, const struct key *key, const char *op)
{
    return k->op && k->key.context == key->context && k->key.n_words == key->n_words &&
           k->key.attrs_length == key->attrs_length &&
           !memcmp(k->key.words, key->words, key->n_words * sizeof(key->words[0])) &&
           !memcmp(k->key.attrs, key->attrs, key->attrs_length) && !strcmp(k->op->name, op);
}

/* ---- calls ---- */

static void copy_launch(struct cuda_launch *to, const struct cuda_launch *from)
{
    memcpy(to, from, offsetof(struct cuda_launch, params) + from->params_size);
    to->n_maps = 0; /* they are in the parameters */
}

static struct here_counted count(struct here_tally *tally, const struct here_shapes *shapes, struct here_row *row)
{
    struct here_counted counted;

    here_tally_lock(tally);
    counted = here_tally_count(tally, shapes, row);
    here_tally_unlock(tally);
    return counted;
}

/* Lock held. */
static void take(struct kept *k, struct here_op_made *ret)
{
    ret->op = k->op;
    ret->function = k->function;
    copy_launch(&ret->launch, &k->launch);
    ret->tally = k->tally;
    ret->counted = (struct here_counted){.timed = false};
    if (k->tally)
        ret->counted = count(k->tally, &k->shapes, &k->row);
}

bool here_op_last_find(struct here_op_last *l, cuda_context context, const struct here_op_call *call,
                       struct here_op_made *ret)
{
    struct key key;
    bool found = false;

    if (!make_key(context, call, &key))
        return false;
    pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < CALLS && !found; i++) {
        const unsigned at = (l->found + i) % CALLS; /* the same again, or the next one where they take turns */

        found = is(&l->calls[at], &key, call->op);
        if (found) {
            l->found = at;
            take(&l->calls[at], ret);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

void here_op_last_keep(struct here_op_last *l, cuda_context context, const struct here_op_call *call,
                       const struct here_op_made *made, const struct here_shapes *shapes)
{
    struct kept *k;
    struct key key;

    if (!make_key(context, call, &key))
        return;
    pthread_mutex_lock(&l->lock);
    l->found = (l->found + 1) % CALLS;
    k = &l->calls[l->found];
    k->key = key;
    k->op = made->op;
    k->function = made->function;
    copy_launch(&k->launch, &made->launch);
    k->tally = made->tally;
    k->row = made->counted.row;
    k->shapes = *shapes;
    pthread_mutex_unlock(&l->lock);
}
