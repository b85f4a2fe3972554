/* Decodes one step: its plan, its overlap check, its device and variant. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/overlap.h"
#include "server/code/kernel.h"
#include "server/code/module.h"
#include "server/exec/command_list.h"
#include "server/exec/room.h"
#include "server/peer/request.h"

/* ---- what it computes ---- */

static const struct kernel_signature *signature_of(const struct command_list *commands, unsigned i)
{
    return commands->kernels[i] ? commands->kernels[i]->signature : NULL;
}

static int check_writable(const struct command_list *commands, unsigned i, const struct op *op, struct error *e)
{
    const struct step *step = &commands->steps[i];
    char key[16], dotted[20];

    for (unsigned o = op->n_inputs; o < op->n_inputs + op->n_outputs; o++) {
        const struct operand_ref *ref = &commands->refs[step->tensors[o]];

        if (!ref->mapping || ref->writable)
            continue;
        snprintf(dotted, sizeof(dotted), "%s.", operand_key(op, signature_of(commands, i), o, key));
        return error_at(e, ERROR_READ_ONLY, dotted, "buffer", "was registered with access \"r\", but is an output");
    }
    return 0;
}

/* Where a step's operands lie. */
struct places {
    const struct command_list *commands;
    const struct step *step;
};

static bool same_memory(const void *context, unsigned a, unsigned b)
{
    const struct places *p = context;
    const struct mapping *x = p->commands->refs[p->step->tensors[a]].mapping;
    const struct mapping *y = p->commands->refs[p->step->tensors[b]].mapping;

    return x && y && mapping_same_memory(x, y);
}

static int check_overlap(struct command_list *commands, unsigned i, const struct op *op, struct error *e)
{
    struct step *step = &commands->steps[i];
    const struct tensor *tensors[STEP_MAX_OPERANDS];
    const struct places places = {commands, step};
    const struct overlap_call call = {.op = op,
                                      .kernel = signature_of(commands, i),
                                      .kind = step->plan.kind,
                                      .tensors = tensors,
                                      .same_memory = same_memory,
                                      .context = &places,
                                      .budget = &commands->search_steps};

    for (unsigned o = 0; o < op->n_inputs + op->n_outputs; o++)
        tensors[o] = &commands->tensors[step->tensors[o]];
    return overlap_check(&call, &step->in_place, e);
}

int step_plan(struct command_list *commands, unsigned i, struct error *e)
{
    const struct op_call call = command_list_call(commands, i);

    if (check_writable(commands, i, call.op, e) < 0)
        return -1;
    /* A kernel's plan exists already; of it, other memory changes the alignment alone. */
    if (commands->kernels[i]) {
        if (launch_check_alignment(commands, i, e) < 0)
            return -1;
    } else if (op_plan(&call, &commands->steps[i].plan, e) < 0) {
        return -1;
    }
    return check_overlap(commands, i, call.op, e);
}

/* ---- where ---- */

static int choose_variant(struct step *step, const struct op *op, struct backend_device *d,
                          const struct rpc_arg *variant, struct error *e)
{
    const char *const *names = d->backend->variants(d, op, step->plan.dtype);
    char all[160] = "";
    int n = 0;

    if (!names) {
        error_set(e, ERROR_UNSUPPORTED, "device %s does not offer %s for %s", d->info.uuid, op->name,
                  dtype_name(step->plan.dtype));
        return error_detail_text(e, "key", "op");
    }
    if (!variant->present)
        return 0;
    for (; *names; names++) {
        if (rpc_text_is(variant, *names)) {
            step_copy_variant(step->variant, *names);
            return 0;
        }
        if (n < (int)sizeof(all) - 1)
            n += snprintf(all + n, sizeof(all) - (size_t)n, " %s", *names);
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "attrs.variant: this device has for %s of %s only:%s", op->name,
              dtype_name(step->plan.dtype), all);
    return error_detail_text(e, "key", "attrs.variant");
}

/* Fills in where each operand lies within its memory. */
static void set_operands(struct command_list *commands, unsigned i)
{
    struct step *step = &commands->steps[i];
    const unsigned operands = step_operands(step);

    for (unsigned o = 0; o < operands; o++) {
        const struct tensor *t = &commands->tensors[step->tensors[o]];

        /* An empty tensor's offset may be anything. */
        step->operands[o] = (struct step_operand){.offset = t->extent ? t->offset : 0, .extent = t->extent};
    }
}

int step_place(struct command_list *commands, unsigned i, struct backend_device *device, const struct rpc_arg *variant,
               struct error *e)
{
    const struct kernel *k = commands->kernels[i];

    if (k && k->module->device != device) {
        error_set(e, ERROR_DEVICE_MISMATCH, "the kernel is loaded on %s, but this runs on %s: say so with `device`",
                  k->module->device->info.uuid, device->info.uuid);
        return error_detail_text(e, "key", "kernel");
    }
    if (!k && choose_variant(&commands->steps[i], commands->ops[i], device, variant, e) < 0)
        return -1;
    set_operands(commands, i);
    return device->backend->check ? device->backend->check(device, &commands->steps[i], e) : 0;
}
