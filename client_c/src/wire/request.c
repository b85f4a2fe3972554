/* Requests and notifications as bytes. */
#include <string.h>

#include "codec/read.h"
#include "put.h"
#include "wire.h"

enum { MAX_DIGITS = 18 }; /* digits of an expression that is sent as a number */

void mp_number_or_text(struct bytes *b, const char *text, size_t max)
{
    const size_t length = strlen(text);
    uint64_t value = 0;

    if (!length || length > max || strspn(text, "0123456789") != length) {
        mp_text_of(b, text, length);
        return;
    }
    for (const char *c = text; *c; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    mp_uint(b, value);
}

/* Moves the pairs where the map's head takes more than the byte that mp_open() reserved. */
void mp_close_long(struct mp_pairs m)
{
    struct bytes *b = m.bytes;
    unsigned char head[CODEC_HEAD_MAX], *end = head;
    size_t longer;

    codec_write_map(&end, m.n);
    longer = (size_t)(end - head) - 1;
    if (longer && bytes_append(b, head, longer))
        memmove(b->data + m.head + 1 + longer, b->data + m.head + 1, b->length - m.head - 1 - longer);
    if (!b->failed)
        memcpy(b->data + m.head, head, 1 + longer);
}

/* ---- messages ---- */

/* Writes [0, msgid, method, [ {…, and makes room for a usual request at once. */
MP_INLINE struct mp_pairs begin(struct bytes *b, uint32_t msgid, const char *method)
{
    if (b->capacity - b->length < 512)
        bytes_grow(b, 512);
    mp_array(b, 4);
    mp_uint(b, 0);
    mp_uint(b, msgid);
    mp_text(b, method);
    mp_array(b, 1);
    return mp_open(b);
}

/* Begins a request, with one descriptor where `fd`. */
static struct mp_pairs begin_fd(struct bytes *b, uint32_t msgid, const char *method, bool fd)
{
    struct mp_pairs m = begin(b, msgid, method);

    if (fd)
        mp_uint(mp_key(&m, "nfds"), 1);
    return m;
}

static void begin_notification(struct bytes *b, const char *method)
{
    mp_array(b, 3);
    mp_uint(b, 2);
    mp_text(b, method);
    mp_array(b, 1);
}

void wire_pack_release(struct bytes *out, const char *what, uint64_t id)
{
    struct mp_pairs m;

    begin_notification(out, "release");
    m = mp_open(out);
    mp_uint(mp_key(&m, what), id);
    mp_close(&m);
}

void wire_pack_notification(struct bytes *out, const char *method, const void *params, size_t length)
{
    begin_notification(out, method);
    bytes_append(out, params, length);
}

void wire_pack_cancel(struct bytes *out, uint32_t msgid)
{
    struct mp_pairs m;

    begin_notification(out, "cancel");
    m = mp_open(out);
    put_cancel_msgid(&m, msgid);
    mp_close(&m);
}

/* ---- plain requests ---- */

void wire_pack_plain(struct bytes *out, uint32_t msgid, const void *request)
{
    begin(out, msgid, request);
}

/* Writes a key whose value is the member of *r with that name. */
#define PUT_MEMBER(map, key, TYPE, required, fallback) put_##map##_##key(&m, r->key);
#define REQUEST(map, owner, fd)                                                                                        \
    void wire_pack_##map(struct bytes *out, uint32_t msgid, const void *request)                                       \
    {                                                                                                                  \
        const owner *r = request;                                                                                      \
        struct mp_pairs m = begin_fd(out, msgid, #map, fd);                                                            \
                                                                                                                       \
        KOPS_KEYS_##map(PUT_MEMBER) mp_close(&m);                                                                      \
    }

REQUEST(hello, struct wire_hello, false)
REQUEST(alloc, struct wire_alloc, false)
REQUEST(code, struct wire_code, r->fd)
REQUEST(cache, struct wire_cache, r->fd)
REQUEST(stats, struct kops_stats_filter, false)
REQUEST(conditions, struct wire_conditions_of, false)
REQUEST(drain, struct kops_drain_options, false)
REQUEST(trace, struct wire_tracing, false)
REQUEST(tuning, struct wire_tuning, false)

void wire_pack_register(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_register *r = request;
    struct mp_pairs m = begin_fd(out, msgid, "register", r->fd);

    put_register_kind(&m, r->kind);
    put_register_size(&m, r->size);
    if (r->handle) {
        mp_binary(key_register_handle(&m), r->handle, WIRE_HANDLE_SIZE);
        mp_uint(key_register_alloc_id(&m), r->alloc_id);
    }
    put_register_fd(&m, r->fd);
    if (r->chunk_bytes)
        mp_uint(put_register_chunk_bytes(&m, 1), r->chunk_bytes);
    put_register_extend(&m, r->extend);
    put_register_device(&m, r->device);
    put_register_access(&m, r->access == KOPS_ACCESS_R ? "r" : NULL);
    mp_close(&m);
}

/* ---- kernels of the user's ---- */

static void pack_texts(struct bytes *list, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mp_text(list, texts[i]);
}

static void pack_files(struct bytes *b, const struct kops_file *files, size_t n)
{
    struct mp_pairs m = mp_open(b);

    for (size_t i = 0; i < n; i++)
        mp_text(mp_key(&m, files[i].name), files[i].text);
    mp_close(&m);
}

void wire_pack_source(struct bytes *out, const struct kops_source *s)
{
    struct mp_pairs m = mp_open(out);

    put_compile_source(&m, s->text);
    put_compile_name(&m, s->name);
    if (s->n_files)
        pack_files(key_compile_files(&m), s->files, s->n_files);
    if (s->n_options)
        pack_texts(put_compile_options(&m, s->n_options), s->options, s->n_options);
    pack_texts(put_compile_entries(&m, s->n_entries), s->entries, s->n_entries);
    put_compile_arch(&m, s->arch);
    put_compile_device(&m, s->device);
    mp_close(&m);
}

/* Writes a number as a number, any other expression as text, NULL as nil. */
static void pack_expression(struct bytes *b, const char *text)
{
    if (text)
        mp_number_or_text(b, text, MAX_DIGITS);
    else
        mp_nil(b);
}

static void pack_expressions(struct bytes *list, const char *const *expressions, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        pack_expression(list, expressions[i]);
}

static unsigned count_texts(const char *const *texts, unsigned max)
{
    unsigned n = 0;

    while (n < max && texts[n])
        n++;
    return n;
}

static void pack_tensor_map(struct bytes *b, const struct kops_tensor_map *t)
{
    struct mp_pairs m = mp_open(b);
    bool steps = false;

    for (unsigned i = 0; i < t->rank; i++)
        steps |= t->steps[i] > 1;
    pack_expressions(put_tensor_map_box(&m, t->rank), t->box, t->rank);
    if (steps)
        put_tensor_map_steps(&m, t->rank);
    for (unsigned i = 0; steps && i < t->rank; i++)
        mp_uint(b, t->steps[i] ? t->steps[i] : 1);
    put_tensor_map_swizzle(&m, t->swizzle);
    put_tensor_map_interleave(&m, t->interleave);
    put_tensor_map_l2(&m, t->l2);
    put_tensor_map_nan(&m, t->nan);
    put_tensor_map_tf32(&m, t->tf32);
    mp_close(&m);
}

static void pack_param(struct bytes *b, const struct kops_param *p)
{
    static const char *const kinds[] = {
        [KOPS_PARAM_IN] = "in", [KOPS_PARAM_OUT] = "out", [KOPS_PARAM_INOUT] = "inout", [KOPS_PARAM_SCALAR] = "scalar"};
    struct mp_pairs m = mp_open(b);
    bool has_shape = false;

    for (unsigned i = 0; i < p->rank; i++)
        has_shape |= p->shape[i] != NULL;
    put_param_name(&m, p->name);
    put_param_kind(&m, kinds[p->kind]);
    put_param_dtype(&m, kops_dtype_name(p->dtype));
    if (has_shape)
        pack_expressions(put_param_shape(&m, p->rank), p->shape, p->rank);
    else
        put_param_rank(&m, p->rank);
    if (p->elements)
        pack_expression(key_param_elements(&m), p->elements);
    put_param_align(&m, p->align);
    put_param_strided(&m, p->strided);
    put_param_lanes(&m, p->lanes > 1 ? p->lanes : 0);
    if (p->map)
        pack_tensor_map(key_param_map(&m), p->map);
    mp_close(&m);
}

void wire_pack_signature(struct bytes *out, const struct kops_signature *s)
{
    const struct kops_geometry *g = &s->geometry;
    const unsigned grid = count_texts(g->grid, 3), block = count_texts(g->block, 3),
                   cluster = count_texts(g->cluster, 3);
    struct mp_pairs map = mp_open(out), *m = &map;

    put_kernel_entry(m, s->entry);
    put_kernel_params(m, s->n_params);
    for (size_t i = 0; i < s->n_params; i++)
        pack_param(m->bytes, &s->params[i]);
    if (grid)
        pack_expressions(put_kernel_grid(m, grid), g->grid, grid);
    if (block)
        pack_expressions(put_kernel_block(m, block), g->block, block);
    if (g->shared)
        pack_expression(key_kernel_shared(m), g->shared);
    if (cluster)
        pack_expressions(put_kernel_cluster(m, cluster), g->cluster, cluster);
    put_kernel_alias(m, s->alias);
    put_kernel_cooperative(m, s->cooperative);
    put_kernel_pdl(m, s->pdl);
    mp_close(m);
}

/* ---- operands and attributes ---- */

static void pack_ints(struct bytes *list, const int64_t *values, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        mp_int(list, values[i]);
}

void wire_gather_tensor(struct bytes *b, const struct native_tensor *t)
{
    struct mp_pairs m = mp_open(b);

    put_tensor_buffer(&m, t->buffer);
    put_tensor_offset(&m, t->offset);
    pack_ints(put_tensor_shape(&m, t->rank), t->shape, t->rank);
    if (t->strides)
        pack_ints(put_tensor_strides(&m, t->rank), t->strides, t->rank);
    put_tensor_dtype(&m, kops_dtype_name(t->dtype));
    mp_close(&m);
}

/* Writes tensors, or their places in a sequence. */
static void pack_operands(struct bytes *list, const struct native_tensor *tensors, const uint32_t *places, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (places)
            mp_uint(list, places[i]);
        else
            wire_gather_tensor(list, &tensors[i]);
}

void wire_pack_attrs(struct bytes *b, const struct kops_attr *attrs, size_t n, const char *variant)
{
    struct mp_pairs m = mp_open(b);

    for (size_t i = 0; i < n; i++) {
        const struct kops_attr *a = &attrs[i];

        mp_key(&m, a->name);
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
    if (variant)
        mp_text(mp_key(&m, "variant"), variant);
    mp_close(&m);
}

/* ---- one op or launch ---- */

/* Writes the arguments. Tensor arguments take the next of the tensors, or of `places`. */
static void pack_args(struct bytes *list, const struct wire_run *w, const uint32_t *places)
{
    const struct native_tensor *tensor = w->tensors;

    for (size_t i = 0; i < w->n_args; i++) {
        const struct kops_argument *a = &w->args[i];

        switch (a->kind) {
        case KOPS_ARG_NULL:
            mp_nil(list);
            break;
        case KOPS_ARG_TENSOR:
            if (places)
                mp_uint(list, *places++);
            else
                wire_gather_tensor(list, tensor++);
            break;
        case KOPS_ARG_INT:
            mp_int(list, a->value.integer);
            break;
        case KOPS_ARG_UINT:
            mp_uint(list, a->value.natural);
            break;
        case KOPS_ARG_FLOAT:
            mp_double(list, a->value.real);
            break;
        case KOPS_ARG_BOOL:
            mp_bool(list, a->value.boolean);
            break;
        case KOPS_ARG_INDEX:
            mp_uint(list, a->value.index);
            break;
        case KOPS_ARG_BYTES:
            mp_binary(list, a->value.bytes, a->size);
            break;
        }
    }
}

/* Writes the pairs of a packed map; false: it is no map. */
static bool put_packed(struct mp_pairs *m, const void *map, size_t length)
{
    const unsigned char *data = map;
    const unsigned width = !length ? 0 : (data[0] & 0xf0) == 0x80 ? 1 : data[0] == 0xde ? 3 : data[0] == 0xdf ? 5 : 0;

    if (!width || length < width)
        return false;
    m->n += width == 1 ? data[0] & 0x0fU : (size_t)codec_number(data + 1, width - 1);
    return bytes_append(m->bytes, data + width, length - width);
}

static void put_geometry(struct mp_pairs *m, const struct kops_launch_geometry *g)
{
    if (g->grid.n)
        pack_ints(put_launch_grid(m, g->grid.n), g->grid.size, g->grid.n);
    if (g->block.n)
        pack_ints(put_launch_block(m, g->block.n), g->block.size, g->block.n);
    if (g->has_shared)
        mp_uint(key_launch_shared(m), g->shared);
    if (g->cluster.n)
        pack_ints(put_launch_cluster(m, g->cluster.n), g->cluster.size, g->cluster.n);
}

/* Writes the work and its operands: the keys of `run`, `launch`, and of a sequence's op, whose operands are the places
 * `in` and `out`; both NULL: the tensors themselves. */
static void put_work(struct mp_pairs *m, const struct wire_run *w, const uint32_t *in, const uint32_t *out)
{
    if (w->kernel) {
        put_launch_kernel(m, w->kernel);
        pack_args(put_launch_args(m, w->n_args), w, in);
        if (w->launch_geometry)
            put_geometry(m, w->launch_geometry);
        else if (w->geometry)
            put_packed(m, w->geometry, w->geometry_length);
        return;
    }
    put_run_op(m, w->op);
    pack_operands(put_run_in(m, w->n_inputs), w->tensors, in, w->n_inputs);
    pack_operands(put_run_out(m, w->n_outputs), w->tensors ? w->tensors + w->n_inputs : NULL, out, w->n_outputs);
    if (w->packed_attrs)
        bytes_append(key_run_attrs(m), w->packed_attrs, w->packed_attrs_length);
    else if (w->n_attrs || w->variant)
        wire_pack_attrs(key_run_attrs(m), w->attrs, w->n_attrs, w->variant);
}

static void put_how(struct mp_pairs *m, const struct wire_how *h)
{
    const struct kops_options *o = h->options;

    if (o)
        put_run_device(m, o->device);
    put_run_stream(m, h->stream);
    put_run_timing(m, !h->no_timing);
    put_run_exact(m, h->exact);
    put_run_exclusive(m, h->exclusive);
    if (o) {
        put_run_warmup(m, o->warmup);
        put_run_repeat(m, o->repeat);
        put_run_deadline_ms(m, o->deadline_ms);
    }
    put_run_priority(m, h->priority);
    put_run_ready(m, h->ready);
    put_run_done(m, h->done);
}

void wire_pack_run(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run *w = request;
    const struct kops_options *o = w->how.options;
    struct mp_pairs m = begin(out, msgid, w->caches ? "counters" : w->kernel ? "launch" : "run");

    put_work(&m, w, NULL, NULL);
    if (w->caches) {
        put_counters_cache(&m, w->caches);
        put_counters_device(&m, o ? o->device : NULL);
        put_counters_deadline_ms(&m, o ? o->deadline_ms : 0);
    } else {
        put_how(&m, &w->how);
    }
    mp_close(&m);
}

void wire_pack_tune(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run *w = request;
    struct mp_pairs m = begin(out, msgid, "tune");

    put_work(&m, w, NULL, NULL);
    put_tune_device(&m, w->how.options->device);
    mp_close(&m);
}

/* ---- sequences and programs ---- */

void wire_gather_op(struct bytes *b, const struct wire_run *w, const uint32_t *indices)
{
    struct mp_pairs m = mp_open(b);

    put_work(&m, w, indices, indices + w->n_inputs);
    mp_close(&m);
}

static void pack_step(struct bytes *b, const struct kops_step *s, uint64_t kernel)
{
    const struct wire_run run = {.op = s->op,
                                 .n_inputs = (unsigned)s->n_inputs,
                                 .n_outputs = (unsigned)s->n_outputs,
                                 .attrs = s->attrs,
                                 .n_attrs = s->n_attrs,
                                 .variant = s->variant,
                                 .kernel = kernel,
                                 .args = s->args,
                                 .n_args = s->n_args,
                                 .launch_geometry = s->geometry};
    struct mp_pairs m = mp_open(b);

    put_work(&m, &run, s->inputs, s->outputs);
    mp_close(&m);
}

static void put_steps(struct mp_pairs *m, const struct wire_sequence *w)
{
    pack_operands(put_sequence_tensors(m, w->n_tensors), w->tensors, NULL, w->n_tensors);
    put_sequence_ops(m, w->n_steps);
    for (size_t i = 0; i < w->n_steps; i++)
        pack_step(m->bytes, &w->steps[i], w->steps[i].kernel ? w->kernels[i] : 0);
}

void wire_pack_sequence(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_sequence *w = request;
    struct mp_pairs m = begin(out, msgid, "sequence");

    put_steps(&m, w);
    put_how(&m, &w->how);
    mp_close(&m);
}

void wire_pack_gathered(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_gathered *w = request;
    struct mp_pairs m = begin(out, msgid, "sequence");

    bytes_append(put_sequence_tensors(&m, w->n_tensors), w->tensors->data, w->tensors->length);
    bytes_append(put_sequence_ops(&m, w->n_ops), w->ops->data, w->ops->length);
    put_how(&m, &w->how);
    mp_close(&m);
}

void wire_pack_program(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_sequence *w = request;
    struct mp_pairs m = begin(out, msgid, "program");

    put_steps(&m, w);
    put_program_device(&m, w->device);
    mp_close(&m);
}

static void pack_binding(struct bytes *b, const struct wire_bound *r)
{
    struct mp_pairs m = mp_open(b);

    KOPS_KEYS_binding(PUT_MEMBER);
    mp_close(&m);
}

void wire_pack_run_program(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run_program *w = request;
    struct mp_pairs m = begin(out, msgid, "run_program");

    put_run_program_program(&m, w->program);
    if (w->n_bound)
        put_run_program_bind(&m, w->n_bound);
    for (size_t i = 0; i < w->n_bound; i++)
        pack_binding(out, &w->bound[i]);
    put_how(&m, &w->how);
    mp_close(&m);
}

static void put_declaration(struct mp_pairs *m, const struct wire_kernel *w)
{
    put_kernel_module(m, w->module);
    put_packed(m, w->signature->data, w->signature->length);
    mp_close(m);
}

void wire_pack_declaration(struct bytes *out, const struct wire_kernel *w)
{
    struct mp_pairs m = mp_open(out);

    put_declaration(&m, w);
}

void wire_pack_kernel(struct bytes *out, uint32_t msgid, const void *request)
{
    struct mp_pairs m = begin(out, msgid, "kernel");

    put_declaration(&m, request);
}

void wire_pack_raw(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_raw *w = request;
    const struct wire_how how = {.stream = w->stream, .ready = w->ready, .done = w->done};
    struct mp_pairs m = begin(out, msgid, w->method);

    if (put_packed(&m, w->params, w->length)) {
        put_how(&m, &how);
        mp_close(&m);
    } else { /* for the daemon to refuse */
        out->length = m.head;
        bytes_append(out, w->params, w->length);
    }
}
