/* Requests that run something: one op, a sequence, a program. */
#include <string.h>

#include "wire.h"
#include "wire_begin.h"

/* ---- operands and attributes ---- */

static void pack_dimensions(struct bytes *b, const int64_t *values, unsigned rank)
{
    mp_array(b, rank);
    for (unsigned i = 0; i < rank; i++)
        mp_int(b, values[i]);
}

void wire_gather_tensor(struct bytes *b, const struct native_tensor *t)
{
    mp_map(b, 2 + (t->buffer ? 1U : 0U) + (t->offset ? 1U : 0U) + (t->strides ? 1U : 0U));
    if (t->buffer)
        mp_pair_uint(b, "buffer", t->buffer);
    if (t->offset)
        mp_pair_uint(b, "offset", t->offset);
    mp_key(b, "shape");
    pack_dimensions(b, t->shape, t->rank);
    if (t->strides) {
        mp_key(b, "strides");
        pack_dimensions(b, t->strides, t->rank);
    }
    mp_pair_text(b, "dtype", kops_dtype_name(t->dtype));
}

static void pack_attr(struct bytes *b, const struct kops_attr *a)
{
    mp_text(b, a->name);
    switch (a->type) {
    case KOPS_ATTR_BOOL:
        mp_bool(b, a->value.boolean);
        break;
    case KOPS_ATTR_INT:
        mp_int(b, a->value.integer);
        break;
    case KOPS_ATTR_FLOAT:
        mp_double(b, a->value.real);
        break;
    case KOPS_ATTR_TEXT:
        mp_text(b, a->value.text);
        break;
    }
}

void wire_pack_attrs(struct bytes *b, const struct kops_attr *attrs, size_t n, const char *variant)
{
    mp_map(b, n + (variant ? 1 : 0));
    for (size_t i = 0; i < n; i++)
        pack_attr(b, &attrs[i]);
    if (variant)
        mp_pair_text(b, "variant", variant);
}

/* The key and its map; nothing where there are none. */
static void pack_attrs(struct bytes *b, const struct kops_attr *attrs, size_t n, const char *variant)
{
    if (!n && !variant)
        return;
    mp_key(b, "attrs");
    wire_pack_attrs(b, attrs, n, variant);
}

static bool has_attrs(const struct wire_run *w)
{
    return w->packed_attrs || w->n_attrs || w->variant;
}

static void pack_run_attrs(struct bytes *b, const struct wire_run *w)
{
    if (!w->packed_attrs) {
        pack_attrs(b, w->attrs, w->n_attrs, w->variant);
        return;
    }
    mp_key(b, "attrs");
    bytes_append(b, w->packed_attrs, w->packed_attrs_length);
}

/* ---- how ---- */

unsigned wire_count_how(const struct wire_how *h)
{
    const struct kops_options *o = h->options;

    return (h->stream != 0) + h->no_timing + h->exact + h->exclusive + (h->priority != NULL) + (h->ready != 0) +
           (h->done != 0) + (o ? (o->device != NULL) + (o->warmup != 0) + (o->repeat != 0) + (o->deadline_ms != 0) : 0);
}

void wire_pack_how(struct bytes *b, const struct wire_how *h)
{
    const struct kops_options *o = h->options;

    if (o && o->device) {
        mp_key(b, "device");
        wire_pack_device(b, o->device);
    }
    if (h->stream)
        mp_pair_uint(b, "stream", h->stream);
    if (h->no_timing)
        mp_pair_bool(b, "timing", false);
    if (h->exact)
        mp_pair_bool(b, "exact", true);
    if (h->exclusive)
        mp_pair_bool(b, "exclusive", true);
    if (o && o->warmup)
        mp_pair_uint(b, "warmup", o->warmup);
    if (o && o->repeat)
        mp_pair_uint(b, "repeat", o->repeat);
    if (o && o->deadline_ms)
        mp_pair_uint(b, "deadline_ms", o->deadline_ms);
    if (h->priority)
        mp_pair_text(b, "priority", h->priority);
    if (h->ready)
        mp_pair_uint(b, "ready", h->ready);
    if (h->done)
        mp_pair_uint(b, "done", h->done);
}

/* ---- one op ---- */

void wire_begin_run(struct bytes *b, uint32_t msgid, const struct wire_run *run, const char *method)
{
    if (run->caches)
        method = "counters";
    wire_begin_request(b, msgid, method, strlen(method));
}

unsigned wire_count_run_how(const struct wire_run *run)
{
    const struct kops_options *o = run->how.options;

    if (!run->caches)
        return wire_count_how(&run->how);
    return 1 + (o ? (o->device != NULL) + (o->deadline_ms != 0) : 0);
}

void wire_pack_run_how(struct bytes *b, const struct wire_run *run)
{
    const struct kops_options *o = run->how.options;

    if (!run->caches) {
        wire_pack_how(b, &run->how);
        return;
    }
    mp_pair_text(b, "cache", run->caches);
    if (o && o->device) {
        mp_key(b, "device");
        wire_pack_device(b, o->device);
    }
    if (o && o->deadline_ms)
        mp_pair_uint(b, "deadline_ms", o->deadline_ms);
}

void wire_pack_run(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run *w = request;

    if (w->kernel) {
        wire_pack_launch(out, msgid, w);
        return;
    }
    wire_begin_run(out, msgid, w, "run");
    mp_map(out, 3 + (has_attrs(w) ? 1U : 0U) + wire_count_run_how(w));
    mp_pair_text(out, "op", w->op);
    mp_key(out, "in");
    mp_array(out, w->n_inputs);
    for (unsigned i = 0; i < w->n_inputs; i++)
        wire_gather_tensor(out, &w->tensors[i]);
    mp_key(out, "out");
    mp_array(out, w->n_outputs);
    for (unsigned i = 0; i < w->n_outputs; i++)
        wire_gather_tensor(out, &w->tensors[w->n_inputs + i]);
    if (has_attrs(w))
        pack_run_attrs(out, w);
    wire_pack_run_how(out, w);
}

/* ---- sequences and programs ---- */

static void pack_indices(struct bytes *b, const uint32_t *indices, size_t n)
{
    mp_array(b, n);
    for (size_t i = 0; i < n; i++)
        mp_uint(b, indices[i]);
}

void wire_gather_op(struct bytes *b, const struct wire_run *w, const uint32_t *indices)
{
    if (w->kernel) {
        wire_pack_launch_op(b, w, indices);
        return;
    }
    mp_map(b, has_attrs(w) ? 4 : 3);
    mp_pair_text(b, "op", w->op);
    mp_key(b, "in");
    pack_indices(b, indices, w->n_inputs);
    mp_key(b, "out");
    pack_indices(b, indices + w->n_inputs, w->n_outputs);
    if (has_attrs(w))
        pack_run_attrs(b, w);
}

static void pack_step(struct bytes *b, const struct kops_step *s)
{
    mp_map(b, s->n_attrs || s->variant ? 4 : 3);
    mp_pair_text(b, "op", s->op);
    mp_key(b, "in");
    pack_indices(b, s->inputs, s->n_inputs);
    mp_key(b, "out");
    pack_indices(b, s->outputs, s->n_outputs);
    pack_attrs(b, s->attrs, s->n_attrs, s->variant);
}

static void pack_work(struct bytes *b, const struct wire_sequence *w)
{
    mp_key(b, "tensors");
    mp_array(b, w->n_tensors);
    for (size_t i = 0; i < w->n_tensors; i++)
        wire_gather_tensor(b, &w->tensors[i]);
    mp_key(b, "ops");
    mp_array(b, w->n_steps);
    for (size_t i = 0; i < w->n_steps; i++) {
        const struct kops_step *s = &w->steps[i];
        const struct wire_run launch = {.kernel = s->kernel ? w->kernels[i] : 0,
                                        .args = s->args,
                                        .n_args = s->n_args,
                                        .launch_geometry = s->geometry};

        if (s->kernel)
            wire_pack_launch_op(b, &launch, NULL);
        else
            pack_step(b, s);
    }
}

void wire_pack_sequence(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_sequence *w = request;

    WIRE_BEGIN(out, msgid, "sequence");
    mp_map(out, 2 + wire_count_how(&w->how));
    pack_work(out, w);
    wire_pack_how(out, &w->how);
}

void wire_pack_gathered(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_gathered *w = request;

    WIRE_BEGIN(out, msgid, "sequence");
    mp_map(out, 2 + wire_count_how(&w->how));
    mp_key(out, "tensors");
    mp_array(out, w->n_tensors);
    bytes_append(out, w->tensors->data, w->tensors->length);
    mp_key(out, "ops");
    mp_array(out, w->n_ops);
    bytes_append(out, w->ops->data, w->ops->length);
    wire_pack_how(out, &w->how);
}

void wire_pack_program(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_sequence *w = request;

    WIRE_BEGIN(out, msgid, "program");
    mp_map(out, w->device ? 3 : 2);
    pack_work(out, w);
    if (w->device) {
        mp_key(out, "device");
        wire_pack_device(out, w->device);
    }
}

void wire_pack_run_program(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run_program *w = request;

    WIRE_BEGIN(out, msgid, "run_program");
    mp_map(out, 1 + (w->n_bound != 0) + wire_count_how(&w->how));
    mp_pair_uint(out, "program", w->program);
    if (w->n_bound) {
        mp_key(out, "bind");
        mp_array(out, w->n_bound);
    }
    for (size_t i = 0; i < w->n_bound; i++) {
        mp_map(out, w->bound[i].offset ? 3 : 2);
        mp_pair_uint(out, "index", w->bound[i].index);
        mp_pair_uint(out, "buffer", w->bound[i].buffer);
        if (w->bound[i].offset)
            mp_pair_uint(out, "offset", w->bound[i].offset);
    }
    wire_pack_how(out, &w->how);
}

/* ---- as it comes ---- */

size_t wire_map_head(const void *map, size_t length, size_t *ret_pairs)
{
    const unsigned char *data = map;

    if (length >= 1 && (data[0] & 0xf0) == 0x80) {
        *ret_pairs = data[0] & 0x0f;
        return 1;
    }
    if (length >= 3 && data[0] == 0xde) {
        *ret_pairs = (size_t)data[1] << 8 | data[2];
        return 3;
    }
    if (length >= 5 && data[0] == 0xdf) {
        *ret_pairs = (size_t)data[1] << 24 | (size_t)data[2] << 16 | (size_t)data[3] << 8 | data[4];
        return 5;
    }
    return 0;
}

void wire_pack_raw(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_raw *w = request;
    const struct wire_how how = {.stream = w->stream, .ready = w->ready, .done = w->done};
    const unsigned more = wire_count_how(&how);
    size_t pairs = 0, head = more ? wire_map_head(w->params, w->length, &pairs) : 0;

    wire_begin_request(out, msgid, w->method, strlen(w->method));
    if (head)
        mp_map(out, pairs + more);
    bytes_append(out, (const char *)w->params + head, w->length - head);
    if (head)
        wire_pack_how(out, &how);
}
