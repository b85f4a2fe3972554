/* Requests about kernels of the user's: compiling, declaring, launching; and the cache. */
#include <string.h>

#include "wire.h"
#include "wire_begin.h"

enum { MAX_DIGITS = 18 }; /* of an expression that is sent as a number */

/* ---- compile ---- */

static void pack_texts(struct bytes *b, const char *const *texts, size_t n)
{
    mp_array(b, n);
    for (size_t i = 0; i < n; i++)
        mp_text(b, texts[i]);
}

void wire_pack_compile(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_source *s = request;

    WIRE_BEGIN(out, msgid, "compile");
    mp_map(out, 2 + (size_t)(s->name != NULL) + (s->n_files != 0) + (s->n_options != 0) + (s->arch != NULL) +
                    (s->device != NULL));
    mp_pair_text(out, "source", s->text);
    if (s->name)
        mp_pair_text(out, "name", s->name);
    if (s->n_files) {
        mp_key(out, "files");
        mp_map(out, s->n_files);
    }
    for (size_t i = 0; i < s->n_files; i++) {
        mp_text(out, s->files[i].name);
        mp_text(out, s->files[i].text);
    }
    if (s->n_options) {
        mp_key(out, "options");
        pack_texts(out, s->options, s->n_options);
    }
    mp_key(out, "entries");
    pack_texts(out, s->entries, s->n_entries);
    if (s->arch)
        mp_pair_text(out, "arch", s->arch);
    if (s->device) {
        mp_key(out, "device");
        wire_pack_device(out, s->device);
    }
}

/* ---- kernel ---- */

/* A number as such, anything else as text. */
static void pack_expression(struct bytes *b, const char *text)
{
    const size_t length = strlen(text);
    uint64_t value = 0;

    if (!length || length > MAX_DIGITS || strspn(text, "0123456789") != length) {
        mp_text_of(b, text, length);
        return;
    }
    for (const char *c = text; *c; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    mp_uint(b, value);
}

static unsigned count_sizes(const char *const *sizes)
{
    unsigned n = 0;

    while (n < 3 && sizes[n])
        n++;
    return n;
}

static void pack_sizes(struct bytes *b, const char *key, const char *const *sizes)
{
    const unsigned n = count_sizes(sizes);

    if (!n)
        return;
    mp_text(b, key);
    mp_array(b, n);
    for (unsigned i = 0; i < n; i++)
        pack_expression(b, sizes[i]);
}

static bool has_shape(const struct kops_param *p)
{
    for (unsigned i = 0; i < p->rank; i++)
        if (p->shape[i])
            return true;
    return false;
}

static void pack_map(struct bytes *b, const struct kops_tensor_map *m)
{
    bool steps = false;

    for (unsigned i = 0; i < m->rank; i++)
        steps |= m->steps[i] > 1;
    mp_key(b, "map");
    mp_map(b, 1 + (size_t)steps + (m->swizzle != 0) + (m->interleave != 0) + (m->l2 != 0) + m->nan + m->tf32);
    mp_key(b, "box");
    mp_array(b, m->rank);
    for (unsigned i = 0; i < m->rank; i++)
        pack_expression(b, m->box[i]);
    if (steps) {
        mp_key(b, "steps");
        mp_array(b, m->rank);
    }
    for (unsigned i = 0; steps && i < m->rank; i++)
        mp_uint(b, m->steps[i] ? m->steps[i] : 1);
    if (m->swizzle)
        mp_pair_uint(b, "swizzle", m->swizzle);
    if (m->interleave)
        mp_pair_uint(b, "interleave", m->interleave);
    if (m->l2)
        mp_pair_uint(b, "l2", m->l2);
    if (m->nan)
        mp_pair_bool(b, "nan", true);
    if (m->tf32)
        mp_pair_bool(b, "tf32", true);
}

static void pack_param(struct bytes *b, const struct kops_param *p)
{
    static const char *const kinds[] = {
        [KOPS_PARAM_IN] = "in", [KOPS_PARAM_OUT] = "out", [KOPS_PARAM_INOUT] = "inout", [KOPS_PARAM_SCALAR] = "scalar"};

    mp_map(b, 3 + (size_t)(p->rank != 0) + (p->elements != NULL) + (p->align != 0) + p->strided + (p->map != NULL) +
                  (p->lanes > 1));
    mp_pair_text(b, "name", p->name);
    mp_pair_text(b, "kind", kinds[p->kind]);
    mp_pair_text(b, "dtype", kops_dtype_name(p->dtype));
    if (has_shape(p)) {
        mp_key(b, "shape");
        mp_array(b, p->rank);
        for (unsigned i = 0; i < p->rank; i++) {
            if (p->shape[i])
                pack_expression(b, p->shape[i]);
            else
                mp_nil(b);
        }
    } else if (p->rank) {
        mp_pair_uint(b, "rank", p->rank);
    }
    if (p->elements) {
        mp_key(b, "elements");
        pack_expression(b, p->elements);
    }
    if (p->align)
        mp_pair_uint(b, "align", p->align);
    if (p->strided)
        mp_pair_bool(b, "strided", true);
    if (p->lanes > 1)
        mp_pair_uint(b, "lanes", p->lanes);
    if (p->map)
        pack_map(b, p->map);
}

void wire_pack_declaration(struct bytes *out, const struct wire_kernel *w)
{
    const struct kops_signature *s = w->signature;
    const struct kops_geometry *g = &s->geometry;

    mp_map(out, 3 + (size_t)(g->grid[0] != NULL) + (g->block[0] != NULL) + (g->shared != NULL) +
                    (g->cluster[0] != NULL) + s->alias + s->cooperative + s->pdl);
    mp_pair_uint(out, "module", w->module);
    mp_pair_text(out, "entry", s->entry);
    mp_key(out, "params");
    mp_array(out, s->n_params);
    for (size_t i = 0; i < s->n_params; i++)
        pack_param(out, &s->params[i]);
    pack_sizes(out, "grid", g->grid);
    pack_sizes(out, "block", g->block);
    if (g->shared) {
        mp_key(out, "shared");
        pack_expression(out, g->shared);
    }
    pack_sizes(out, "cluster", g->cluster);
    if (s->alias)
        mp_pair_bool(out, "alias", true);
    if (s->cooperative)
        mp_pair_bool(out, "cooperative", true);
    if (s->pdl)
        mp_pair_bool(out, "pdl", true);
}

void wire_pack_kernel(struct bytes *out, uint32_t msgid, const void *request)
{
    WIRE_BEGIN(out, msgid, "kernel");
    wire_pack_declaration(out, request);
}

void wire_pack_code(struct bytes *out, uint32_t msgid, const void *request)
{
    const uint64_t *module = request;

    WIRE_BEGIN(out, msgid, "code");
    mp_map(out, 3);
    mp_pair_uint(out, "module", *module);
    mp_pair_uint(out, "fd", 0);
    mp_pair_uint(out, "nfds", 1);
}

void wire_pack_image(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_image *w = request;

    WIRE_BEGIN(out, msgid, "code");
    mp_map(out, w->fd ? 3 : 1);
    mp_pair_text(out, "image", w->name);
    if (!w->fd)
        return;
    mp_pair_uint(out, "fd", 0);
    mp_pair_uint(out, "nfds", 1);
}

/* ---- launch ---- */

/* Tensor arguments become the next of `tensors`, or of `places`. */
static void pack_args(struct bytes *b, const struct wire_run *w, const struct native_tensor *tensors,
                      const uint32_t *places)
{
    mp_key(b, "args");
    mp_array(b, w->n_args);
    for (size_t i = 0; i < w->n_args; i++) {
        const struct kops_argument *a = &w->args[i];

        switch (a->kind) {
        case KOPS_ARG_NULL:
            mp_nil(b);
            break;
        case KOPS_ARG_TENSOR:
            if (tensors)
                wire_gather_tensor(b, tensors++);
            else
                mp_uint(b, *places++);
            break;
        case KOPS_ARG_INT:
            mp_int(b, a->value.integer);
            break;
        case KOPS_ARG_UINT:
            mp_uint(b, a->value.natural);
            break;
        case KOPS_ARG_FLOAT:
            mp_double(b, a->value.real);
            break;
        case KOPS_ARG_BOOL:
            mp_bool(b, a->value.boolean);
            break;
        case KOPS_ARG_INDEX:
            mp_uint(b, a->value.index);
            break;
        case KOPS_ARG_BYTES:
            mp_binary(b, a->value.bytes, a->size);
            break;
        }
    }
}

static size_t count_geometry(const struct wire_run *w)
{
    const struct kops_launch_geometry *g = w->launch_geometry;
    size_t pairs = 0;

    if (w->geometry)
        wire_map_head(w->geometry, w->geometry_length, &pairs);
    return g ? (size_t)(g->grid.n != 0) + (g->block.n != 0) + (g->cluster.n != 0) + g->has_shared : pairs;
}

static void pack_dims(struct bytes *b, const char *key, const struct kops_dims *d)
{
    if (!d->n)
        return;
    mp_text(b, key);
    mp_array(b, d->n);
    for (unsigned i = 0; i < d->n; i++)
        mp_int(b, d->size[i]);
}

static void pack_geometry(struct bytes *b, const struct wire_run *w)
{
    const struct kops_launch_geometry *g = w->launch_geometry;
    size_t pairs, head;

    if (!g && w->geometry) {
        head = wire_map_head(w->geometry, w->geometry_length, &pairs);
        bytes_append(b, w->geometry + head, w->geometry_length - head);
    }
    if (!g)
        return;
    pack_dims(b, "grid", &g->grid);
    pack_dims(b, "block", &g->block);
    if (g->has_shared)
        mp_pair_uint(b, "shared", g->shared);
    pack_dims(b, "cluster", &g->cluster);
}

static void pack_kernel_id(struct bytes *b, uint64_t kernel)
{
    mp_pair_uint(b, "kernel", kernel);
}

void wire_pack_launch(struct bytes *b, uint32_t msgid, const struct wire_run *w)
{
    wire_begin_run(b, msgid, w, "launch");
    mp_map(b, 2 + count_geometry(w) + wire_count_run_how(w));
    pack_kernel_id(b, w->kernel);
    pack_args(b, w, w->tensors, NULL);
    pack_geometry(b, w);
    wire_pack_run_how(b, w);
}

void wire_pack_launch_op(struct bytes *b, const struct wire_run *w, const uint32_t *places)
{
    mp_map(b, 2 + count_geometry(w));
    pack_kernel_id(b, w->kernel);
    pack_args(b, w, NULL, places);
    pack_geometry(b, w);
}

/* ---- cache ---- */

void wire_pack_cache(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_cache *w = request;

    WIRE_BEGIN(out, msgid, "cache");
    mp_map(out, 1 + (w->key ? 1U : 0U) + (w->fd ? 2U : 0U));
    if (w->fd)
        mp_pair_uint(out, "nfds", 1);
    mp_pair_text(out, "action", w->action);
    if (w->key)
        mp_pair_text(out, "key", w->key);
    if (w->fd)
        mp_pair_uint(out, "fd", 0);
}
