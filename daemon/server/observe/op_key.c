#include "server/observe/op_key.h"

#include <string.h>

void op_key_make(struct op_key *key, uid_t uid, const struct op_call *call, const struct backend_device *device,
                 const char *variant)
{
    struct op_key_head *head = &key->head;

    memset(head, 0, sizeof(*head));
    head->code = call->op->code;
    head->uid = uid;
    head->device = device;
    step_copy_variant(head->variant, variant);
    head->op = call->op->id;
    head->operands = call->op->n_inputs + call->op->n_outputs;
    head->dtype = head->operands ? call->tensors[0]->dtype : 0;
    head->out_dtype = call->op->n_outputs ? call->tensors[call->op->n_inputs]->dtype : 0;
    key->name = call->op->name;
    for (unsigned t = 0; t < head->operands; t++) {
        const struct tensor *tensor = call->tensors[t];

        key->words[head->words++] = tensor->rank;
        memcpy(&key->words[head->words], tensor->shape, tensor->rank * sizeof(int64_t));
        head->words += tensor->rank;
    }
}

static uint64_t mix(uint64_t h, const void *data, size_t size)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, (const char *)data + i, sizeof(word));
        h = (h ^ word) * 1099511628211U; /* FNV-1a, over words */
    }
    return h;
}

uint64_t op_key_hash(const struct op_key *key)
{
    uint64_t h = mix(14695981039346656037U, &key->head, sizeof(key->head));

    h = mix(h, key->words, key->head.words * sizeof(key->words[0]));
    return h ^ h >> 32;
}

bool op_key_is(const struct op_key *key, const struct op_key_head *head, const int64_t *words)
{
    return !memcmp(head, &key->head, sizeof(key->head)) &&
           !memcmp(words, key->words, key->head.words * sizeof(key->words[0]));
}

void op_key_each_shape(struct rpc_output *out, const void *of, uint32_t i)
{
    const int64_t *words = of;

    while (i--)
        words += 1 + *words;
    rpc_write_array(out, (uint32_t)*words);
    for (int64_t d = 1; d <= *words; d++)
        rpc_write_uint(out, (uint64_t)words[d]);
}
