#include "op_tally.h"

#include <pthread.h>
#include <stdlib.h>

#include "wire/mp.h"

enum {
#define X(NAME, name, value, size) PLACE_##NAME = (value),
    KOPS_DTYPES(X)
#undef X
        DTYPES /* above every dtype */
};

struct here_ops {
    pthread_mutex_t lock;                         /* of all below; tallies have their own */
    struct here_tally *tallies[OP_COUNT][DTYPES]; /* owned; NULL: none was launched */
    cuda_device device;                           /* of the last launch */
};

struct here_ops *here_ops_new(void)
{
    struct here_ops *o = calloc(1, sizeof(*o));

    if (o)
        pthread_mutex_init(&o->lock, NULL);
    return o;
}

struct here_ops *here_ops_free(struct here_ops *o)
{
    if (!o)
        return NULL;
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned dtype = 0; dtype < DTYPES; dtype++)
            here_tally_free(o->tallies[op][dtype]);
    pthread_mutex_destroy(&o->lock);
    free(o);
    return NULL;
}

struct here_tally *here_ops_tally(struct here_ops *o, const struct op *op, enum dtype dtype, cuda_device device)
{
    struct here_tally **at = &o->tallies[op->id][dtype], *found;

    pthread_mutex_lock(&o->lock);
    o->device = device;
    if (!*at)
        *at = here_tally_new();
    found = *at;
    pthread_mutex_unlock(&o->lock);
    return found;
}

static void tell_one(const struct op *op, enum dtype dtype, const char *device, struct here_tally *tally,
                     here_ops_told *tell, void *to)
{
    const unsigned n = op->n_inputs + op->n_outputs;
    struct bytes params = {.data = NULL};

    mp_map(&params, device ? 4 : 3);
    mp_pair_text(&params, "op", op->name);
    if (device)
        mp_pair_text(&params, "device", device);
    mp_key(&params, "dtypes");
    mp_array(&params, n);
    for (unsigned i = 0; i < n; i++)
        mp_text(&params, dtype_name(dtype));
    mp_key(&params, "rows");
    if (here_tally_take(tally, &params) && !params.failed)
        tell(to, params.data, params.length);
    bytes_free(&params);
}

void here_ops_tell(struct here_ops *o, here_ops_told *tell, void *to)
{
    const struct cuda_driver *d = cuda_loaded();
    char uuid[CUDA_UUID_TEXT];
    bool known;

    pthread_mutex_lock(&o->lock);
    known = d && !cuda_device_uuid(d, o->device, uuid, NULL);
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned dtype = 0; dtype < DTYPES; dtype++)
            if (o->tallies[op][dtype])
                tell_one(op_get((enum op_id)op), (enum dtype)dtype, known ? uuid : NULL, o->tallies[op][dtype], tell,
                         to);
    pthread_mutex_unlock(&o->lock);
}
