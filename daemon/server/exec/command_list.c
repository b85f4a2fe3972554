#include "server/exec/command_list.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/code/kernel.h"
#include "server/exec/room.h"
#include "server/peer/request.h"

const char *tensor_path(unsigned i)
{
    static char paths[SEQUENCE_TENSORS_MAX][sizeof("tensors[2047].")];

    if (!paths[i][0])
        snprintf(paths[i], sizeof(paths[i]), "tensors[%u].", i % SEQUENCE_TENSORS_MAX);
    return paths[i];
}

void command_list_init_single(struct run *run, unsigned n_tensors)
{
    run->commands = (struct command_list){
        .n_tensors = n_tensors,
        .n_steps = 1,
        .tensors = run->one_tensors,
        .refs = run->one_refs,
        .steps = &run->one_step,
        .ops = &run->one_op,
        .kernels = &run->one_kernel,
        .search_steps = STEP_SEARCH_MAX,
    };
    for (unsigned i = 0; i < n_tensors; i++) {
        run->one_refs[i].mapping = NULL;
        run->one_refs[i].shared = NULL;
        run->one_refs[i].waiting = false;
        run->one_step.tensors[i] = (uint16_t)i;
    }
    run->one_kernel = NULL;
    run->one_step.variant[0] = run->one_step.variant_used[0] = '\0';
}

/* `count` items of `size` bytes at *at, which moves on. */
static void *carve(char **at, size_t count, size_t size)
{
    const size_t alignment = _Alignof(max_align_t);
    char *start = *at;

    *at += (count * size + alignment - 1) / alignment * alignment;
    return start;
}

int command_list_new(struct command_list *ret_commands, unsigned n_tensors, unsigned n_steps,
                     struct command_memory *counted_in, struct error *e)
{
    const size_t slack = 5 * _Alignof(max_align_t);
    struct command_list b = {.n_tensors = n_tensors, .n_steps = n_steps, .search_steps = STEP_SEARCH_MAX};
    char *at;

    b.bytes = (n_tensors + 1) * (sizeof(*b.tensors) + sizeof(*b.refs)) +
              n_steps * (sizeof(*b.steps) + sizeof(*b.ops) + sizeof(*b.kernels)) + slack;
    at = calloc(1, b.bytes);

    if (!at)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u ops", n_steps);
    b.memory = at;
    /* The extra tensor has no memory: null pointers refer to it. */
    b.tensors = carve(&at, n_tensors + 1, sizeof(*b.tensors));
    b.refs = carve(&at, n_tensors + 1, sizeof(*b.refs));
    b.steps = carve(&at, n_steps, sizeof(*b.steps));
    b.ops = carve(&at, n_steps, sizeof(*b.ops));
    b.kernels = carve(&at, n_steps, sizeof(*b.kernels));
    b.counted_in = counted_in;
    *counted_in->bytes += b.bytes;
    charge_count(&b.charge, counted_in->account, counted_in->quota, b.bytes);
    *ret_commands = b;
    return 0;
}

void command_list_move(struct command_list *commands, struct command_memory *counted_in)
{
    *commands->counted_in->bytes -= commands->bytes;
    *counted_in->bytes += commands->bytes;
    commands->counted_in = counted_in;
    charge_free(&commands->charge);
    charge_count(&commands->charge, counted_in->account, counted_in->quota, commands->bytes);
}

void command_list_unuse(struct command_list *commands)
{
    for (unsigned i = 0; i < commands->n_tensors; i++) {
        struct operand_ref *ref = &commands->refs[i];

        if (ref->waiting)
            mapping_stop_waiting(&ref->waiter);
        ref->waiting = false;
        ref->shared = shared_charge_unref(ref->shared);
        if (ref->mapping)
            mapping_unuse(ref->mapping);
        ref->mapping = NULL;
    }
}

void command_list_release(struct command_list *commands)
{
    command_list_unuse(commands);
    for (unsigned i = 0; i < commands->n_steps; i++)
        kernel_unref(commands->kernels[i]);
    if (commands->counted_in) {
        *commands->counted_in->bytes -= commands->bytes;
        charge_free(&commands->charge);
    }
    free(commands->memory);
    *commands = (struct command_list){0};
}

struct op_call command_list_call(const struct command_list *commands, unsigned i)
{
    const struct step *step = &commands->steps[i];
    const unsigned operands = step_operands(step);
    struct op_call call = {.op = commands->ops[i]};

    for (unsigned o = 0; o < operands; o++)
        call.tensors[o] = &commands->tensors[step->tensors[o]];
    memcpy(call.attrs, step->attrs, sizeof(call.attrs));
    return call;
}

/* ---- checks of a whole list: its device, its handles, and whether it may be repeated ---- */

/* The key that an error names for a tensor: "tensors[0]" of several ops, "args[0]" of a kernel, "in" or "out" of a
 * single op. Of several ops none may be decoded yet. */
static int blame_tensor(const struct command_list *commands, unsigned i, struct error *e)
{
    char key[24];

    if (commands->memory)
        snprintf(key, sizeof(key), "tensors[%u]", i);
    else if (commands->kernels[0])
        kernel_operand_key(commands->kernels[0], i, key);
    else
        snprintf(key, sizeof(key), "%s", i < commands->steps[0].n_inputs ? "in" : "out");
    return error_detail_text(e, "key", key);
}

/* The device of the last tensor that lies on one. The last tensor of a single op is an output. NULL: all are memfds. */
static struct backend_device *device_of_last(const struct command_list *commands)
{
    for (unsigned i = commands->n_tensors; i--;)
        if (commands->refs[i].mapping && commands->refs[i].mapping->device)
            return commands->refs[i].mapping->device;
    return NULL;
}

bool device_can_access(struct backend_device *device, struct backend_device *owner)
{
    return device == owner || (device->backend == owner->backend && device->backend->can_access &&
                               device->backend->can_access(device, owner));
}

int command_list_choose_device(struct server *s, const struct command_list *commands, const struct rpc_arg *arg,
                               struct backend_device **ret_device, struct error *e)
{
    struct backend_device *tensors = device_of_last(commands), *device = tensors;

    if (!tensors || arg->present) {
        device = server_device(s, arg, e);
        if (!device)
            return -1;
    }
    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct mapping *m = commands->refs[i].mapping;

        if (!m || !m->device || device_can_access(device, m->device))
            continue;
        if (arg->present) {
            error_set(e, ERROR_DEVICE_MISMATCH,
                      "the tensors live on %s, but device says %s, which has no access to that memory",
                      m->device->info.uuid, device->info.uuid);
            return error_detail_text(e, "key", "device");
        }
        error_set(
            e, ERROR_DEVICE_MISMATCH,
            "the tensors live on %s and on %s, which have no access to each other's memory; move them to one device",
            device->info.uuid, m->device->info.uuid);
        return blame_tensor(commands, i, e);
    }
    *ret_device = device;
    return 0;
}

int command_list_check_handles(const struct command_list *commands, struct error *e)
{
    const struct mapping *first = NULL; /* the first IPC handle */

    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct mapping *m = commands->refs[i].mapping;

        if (!m)
            continue;
        if (m->kind == MEMORY_CUDA_IPC && first && m->keyed != first->keyed) {
            error_set(e, ERROR_INVALID_ARGUMENT, "give alloc_id with every reference of a request, or with none");
            return error_detail_text(e, "key", "alloc_id");
        }
        if (m->kind == MEMORY_CUDA_IPC && !first)
            first = m;
        if (m->stale) {
            error_set(e, ERROR_STALE_BUFFER,
                      "two references of this request have equal handles but different "
                      "alloc_ids; the older allocation was freed");
            return blame_tensor(commands, i, e);
        }
    }
    return 0;
}

/* ---- repeating ---- */

enum { NEVER = UINT_MAX };

/* When a tensor is used: numbers of steps. */
struct tensor_use {
    unsigned first_read, first_write, last_write;
};

static void note_uses(const struct command_list *commands, struct tensor_use *uses)
{
    for (unsigned i = 0; i <= commands->n_tensors; i++)
        uses[i] = (struct tensor_use){NEVER, NEVER, NEVER};
    for (unsigned i = 0; i < commands->n_steps; i++) {
        const struct step *step = &commands->steps[i];
        const struct kernel *kernel = commands->kernels[i];
        const struct op_call call = command_list_call(commands, i);
        const unsigned n_inputs = step->n_inputs;
        /* gemm with beta reads its output, too. */
        const bool accumulates = !kernel && op_reads_output(&call, -1);

        for (unsigned o = 0; o < step_operands(step); o++) {
            struct tensor_use *use = &uses[step->tensors[o]];
            bool read = o < n_inputs || accumulates || (kernel && kernel->signature->operands[o]->kind == KERNEL_INOUT);

            if (use->first_read == NEVER && read)
                use->first_read = i;
            if (o < n_inputs)
                continue;
            use->first_write = use->first_write == NEVER ? i : use->first_write;
            use->last_write = i;
        }
    }
}

/* A tensor that is written. Such tensors are sorted by memory, then by beginning. `reach` is the furthest end among the
 * tensors of the same memory that begin no later, so a backward search may stop there. */
struct written {
    uint64_t memory, begin, reach; /* memory: mapping_memory_hash() */
    unsigned tensor;
};

static int compare_written(const void *a, const void *b)
{
    const struct written *x = a, *y = b;

    if (x->memory != y->memory)
        return x->memory < y->memory ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static unsigned list_written(const struct command_list *commands, const struct tensor_use *uses, struct written *into)
{
    unsigned n = 0;

    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct tensor *t = &commands->tensors[i];

        if (uses[i].last_write != NEVER && commands->refs[i].mapping)
            into[n++] = (struct written){.memory = mapping_memory_hash(commands->refs[i].mapping),
                                         .begin = t->offset,
                                         .reach = t->offset + t->extent,
                                         .tensor = i};
    }
    qsort(into, n, sizeof(*into), compare_written);
    for (unsigned i = 1; i < n; i++)
        if (into[i].memory == into[i - 1].memory && into[i].reach < into[i - 1].reach)
            into[i].reach = into[i - 1].reach;
    return n;
}

/* How many of the tensors come before the end of the given one, in its memory or an earlier one. */
static unsigned count_before(const struct written *written, unsigned n, uint64_t memory, uint64_t end)
{
    unsigned low = 0;

    while (low < n) {
        const unsigned middle = low + (n - low) / 2;
        const struct written *w = &written[middle];

        if (w->memory < memory || (w->memory == memory && w->begin < end))
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* Whether a repetition reads a changed tensor: the tensor is read by step `at` before any step writes it anew, and is
 * written by that step or a later one. The first read decides; later reads need no look. Each tensor whose bytes meet
 * the tensor's own counts as a step of the search, and so does every 16th tensor that is passed. */
static bool is_spoiled(struct command_list *commands, const struct tensor_use *uses, const struct written *written,
                       unsigned n_written, unsigned i)
{
    enum { LOOKS_A_STEP = 16 };
    const unsigned at = uses[i].first_read;
    const struct mapping *m = commands->refs[i].mapping;
    const struct tensor *t = &commands->tensors[i];
    const uint64_t memory = mapping_memory_hash(m);
    bool spoiled = false;

    for (unsigned j = count_before(written, n_written, memory, t->offset + t->extent); j--;) {
        const struct tensor *other = &commands->tensors[written[j].tensor];
        const struct tensor_use *use = &uses[written[j].tensor];
        bool same;

        if (written[j].memory != memory || written[j].reach <= t->offset)
            break;
        if (j % LOOKS_A_STEP == 0 && commands->search_steps)
            commands->search_steps--;
        if (t->offset >= other->offset + other->extent ||
            !mapping_same_memory(m, commands->refs[written[j].tensor].mapping))
            continue;
        if (commands->search_steps == 0)
            return true;
        commands->search_steps--;
        same = tensor_same_view(t, other);
        if (same && use->first_write < at)
            return false;
        if (!spoiled && use->last_write >= at)
            spoiled = same || tensor_share_elements_within(t, other, &commands->search_steps);
    }
    return spoiled;
}

static int refuse(const struct command_list *commands, unsigned i, struct error *e)
{
    if (!commands->memory && commands->kernels[0])
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "repeat: the kernel reads what it writes, so repeating would apply it again and again; declare as "
                  "`out` what it only writes");
    else if (!commands->memory)
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "repeat: the op reads what it writes (in place, or beta is not 0), so repeating would apply it again "
                  "and again; use another output");
    else
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "repeat: op %u reads what it or a later op writes, so repeating would compute something else each "
                  "time; use another output",
                  i);
    error_detail_text(e, "key", "repeat");
    return commands->memory ? error_detail_number(e, "op_index", i) : -1;
}

static unsigned first_spoiled(struct command_list *commands, struct tensor_use *uses, struct written *written)
{
    unsigned n_written, first = NEVER;

    note_uses(commands, uses);
    n_written = list_written(commands, uses, written);
    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct tensor_use *use = &uses[i];

        if (use->first_read < first && use->first_read <= use->first_write && commands->refs[i].mapping &&
            is_spoiled(commands, uses, written, n_written, i))
            first = use->first_read;
    }
    return first;
}

int command_list_check_repeat(struct command_list *commands, struct error *e)
{
    struct tensor_use few[STEP_MAX_OPERANDS + 1], *uses = few;
    struct written few_written[STEP_MAX_OPERANDS], *written = few_written;
    unsigned first;

    if (commands->n_tensors > STEP_MAX_OPERANDS) {
        written = malloc((commands->n_tensors + 1) * (sizeof(*uses) + sizeof(*written)));
        if (!written)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to check %u tensors", commands->n_tensors);
        uses = (struct tensor_use *)(void *)(written + commands->n_tensors + 1);
    }
    first = first_spoiled(commands, uses, written);
    if (written != few_written)
        free(written);
    return first == NEVER ? 0 : refuse(commands, first, e);
}
