#include "server/code/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/code/room.h"
#include "server/peer/connection.h"

/* What stays loaded that nobody refers to: so many, each at most so large on its device. */
enum { IDLE_CODES = 128, IDLE_BYTES = 2 << 20 };

/* ---- architectures ---- */

struct arch {
    unsigned major, minor;
    char suffix;
};

/* "sm_90a": 9.0, 'a'. */
static bool parse_arch(const char *text, struct arch *ret)
{
    unsigned number = 0, digits = 0;

    if (strncmp(text, "sm_", 3) != 0)
        return false;
    for (text += 3; isdigit((unsigned char)*text) && digits < 4; text++, digits++)
        number = number * 10 + (unsigned)(*text - '0');
    if (digits < 2 || (*text && text[1]))
        return false;
    *ret = (struct arch){.major = number / 10, .minor = number % 10, .suffix = *text};
    return true;
}

bool code_runs_on(const char *arch, const struct backend_device *device)
{
    struct arch made, here;

    if (!device->backend->code_load || !parse_arch(arch, &made) || !parse_arch(device->info.arch, &here) ||
        made.major != here.major)
        return false;
    return made.suffix == 'a' ? made.minor == here.minor : made.minor <= here.minor;
}

void code_default_arch(const struct backend_device *device, char into[COMPILED_ARCH_SIZE])
{
    struct arch here;

    into[0] = '\0';
    if (!device->backend->code_load || !parse_arch(device->info.arch, &here))
        return;
    /* From 9.0 on there are features that only code for exactly this architecture has. */
    snprintf(into, COMPILED_ARCH_SIZE, "sm_%u%u%s", here.major % 1000, here.minor % 10, here.major >= 9 ? "a" : "");
}

/* ---- loading ---- */

static void load(struct work *work)
{
    struct code *code = list_entry(work, struct code, work);
    const struct backend *backend = code->device->backend;
    const struct compiled *c = code->compiled;

    if (backend->code_load(code->device, c->image, c->image_size, &code->loaded, &code->error) < 0) {
        code->loaded = NULL;
        return;
    }
    for (unsigned i = 0; i < c->n_entries; i++)
        if (backend->code_function(code->device, code->loaded, c->entries[i].lowered, &code->functions[i],
                                   &code->error) < 0) {
            backend->code_unload(code->device, code->loaded);
            code->loaded = NULL;
            return;
        }
}

static void code_free(struct code *code)
{
    list_remove(&code->link);
    compiled_unref(code->compiled);
    free(code->functions);
    free(code);
}

static void unload(struct work *work)
{
    struct code *code = list_entry(work, struct code, work);

    code->device->backend->code_unload(code->device, code->loaded);
}

static void unloaded(struct work *work)
{
    code_free(list_entry(work, struct code, work));
}

/* Nobody refers to it. */
static void retire(struct code *code)
{
    struct server *s = code->server;

    list_remove(&code->link);
    if (!code->loaded) {
        code_free(code);
        return;
    }
    if (compiled_device_bytes(code->compiled) <= IDLE_BYTES) {
        list_append(&s->modules->idle, &code->link);
        if (++s->modules->n_idle <= IDLE_CODES)
            return;
        code = list_entry(list_first(&s->modules->idle), struct code, link);
        s->modules->n_idle--;
        list_remove(&code->link);
    }
    work_submit(&s->loop, &code->work, unload, unloaded);
}

static void loaded(struct work *work)
{
    struct code *code = list_entry(work, struct code, work);

    code->state = code->loaded ? CODE_READY : CODE_FAILED;
    while (!list_empty(&code->waiters)) {
        struct code_waiter *waiter = list_entry(list_first(&code->waiters), struct code_waiter, link);

        list_remove(&waiter->link);
        waiter->ready(waiter);
    }
    code_unref(code); /* the load's own */
}

/* ---- sharing ---- */

void codes_free(struct server *s)
{
    list_for_each_safe (node, after, &s->modules->idle) {
        struct code *code = list_entry(node, struct code, link);

        code->device->backend->code_unload(code->device, code->loaded);
        code_free(code);
    }
}

static struct code *find(struct list *list, const struct compiled *compiled, const struct backend_device *device)
{
    for (struct list *node = list->prev; node != list; node = node->prev) {
        struct code *code = list_entry(node, struct code, link);

        if (code->device == device && code->state != CODE_FAILED &&
            !memcmp(code->compiled->key, compiled->key, sizeof(compiled->key)))
            return code;
    }
    return NULL;
}

struct code *code_take(struct server *s, struct compiled *compiled, struct backend_device *device)
{
    struct code *code = find(&s->modules->used, compiled, device);

    if (code)
        return code_ref(code);
    code = find(&s->modules->idle, compiled, device);
    if (code) {
        list_remove(&code->link);
        list_append(&s->modules->used, &code->link);
        s->modules->n_idle--;
        return code_ref(code);
    }
    code = calloc(1, sizeof(*code));
    if (!code || !(code->functions = calloc(compiled->n_entries, sizeof(*code->functions)))) {
        free(code);
        return NULL;
    }
    code->server = s;
    code->refs = 1;
    code->compiled = compiled_ref(compiled);
    code->device = device;
    code->state = device ? CODE_LOADING : CODE_READY;
    list_init(&code->waiters);
    list_init(&code->link);
    list_append(&s->modules->used, &code->link);
    if (device) {
        code->refs++;
        work_submit(&s->loop, &code->work, load, loaded);
    }
    return code;
}

struct code *code_ref(struct code *code)
{
    code->refs++;
    return code;
}

void code_unref(struct code *code)
{
    if (code && --code->refs == 0)
        retire(code);
}

void code_wait(struct code *code, struct code_waiter *waiter)
{
    list_append(&code->waiters, &waiter->link);
}
