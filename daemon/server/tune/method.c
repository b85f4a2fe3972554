/* The methods tune and tuning. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/decode.h"
#include "server/exec/run.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/tune/room.h"
#include "util/clock.h"
#include "util/log.h"

enum { ROWS_MAX = 256, PATH_LENGTH = 32, ALIGNMENT = 256 };

/* The state of a request: its task, which points back. */
struct tune_wait {
    struct tune_task *task;
};
const size_t tune_state_bytes = sizeof(struct tune_wait);

static const struct rpc_field tensor_fields[] = {KOPS_PARAMS_TENSOR(RPC_FIELD)};

/* ---- what is asked ---- */

/* A tensor map without memory: shape, strides, dtype, and of `offset` what it says of the alignment. */
static int decode_tensor(const struct rpc_value *value, const char *key, unsigned i, struct tensor *t, struct error *e)
{
    struct rpc_arg args[TENSOR_KEYS];
    char path[PATH_LENGTH], name[PATH_LENGTH];

    snprintf(path, sizeof(path), "%s[%u].", key, i);
    snprintf(name, sizeof(name), "%s[%u]", key, i);
    if (rpc_decode_map(value, tensor_fields, TENSOR_KEYS, path, args, e) < 0)
        return -1;
    if (args[TENSOR_buffer].present || args[TENSOR_ipc].present)
        return error_at(e, ERROR_INVALID_ARGUMENT, path, args[TENSOR_buffer].present ? "buffer" : "ipc",
                        "tune takes no memory: shape, strides, dtype and offset say what it needs to know");
    return tensor_decode_layout(args, path, t, e) < 0 ? -1 : tensor_measure(t, name, e);
}

static int decode_list(const struct rpc_arg *list, const char *key, unsigned n, struct tensor *tensors, struct error *e)
{
    const struct rpc_value *value = NULL;

    if (list->length != n) {
        error_at(e, ERROR_INVALID_ARGUMENT, "", key, "as many tensors as the op has are expected");
        return error_detail_number(e, "expected", n);
    }
    for (unsigned i = 0; i < n; i++) {
        value = rpc_list_next(list, value);
        if (decode_tensor(value, key, i, &tensors[i], e) < 0)
            return -1;
    }
    return 0;
}

static int decode_step(const struct rpc_arg *args, struct tuning_request *request, struct error *e)
{
    const struct op *op = op_find(args[TUNE_op].text, args[TUNE_op].length);
    struct tensor tensors[PLAN_MAX_OPERANDS];
    struct op_call call = {.op = op};
    struct rpc_arg variant = {.present = false};

    if (!op)
        return error_at(e, ERROR_UNKNOWN_OP, "", "op", "no such op; hello lists them");
    if (decode_list(&args[TUNE_in], "in", op->n_inputs, tensors, e) < 0 ||
        decode_list(&args[TUNE_out], "out", op->n_outputs, tensors + op->n_inputs, e) < 0 ||
        op_attrs_decode(op, args[TUNE_attrs].present ? args[TUNE_attrs].items : NULL, call.attrs, &variant, e) < 0)
        return -1;
    if (variant.present)
        return error_at(e, ERROR_INVALID_ARGUMENT, "attrs.", "variant", "tuning chooses it");
    for (unsigned i = 0; i < op->n_inputs + op->n_outputs; i++) {
        call.tensors[i] = &tensors[i];
        request->alignment[i] = (uint32_t)(tensors[i].offset % ALIGNMENT);
    }
    if (op_plan(&call, &request->step.plan, e) < 0)
        return -1;
    step_set_op(&request->step, op);
    request->step.in_place = -1;
    memcpy(request->step.attrs, call.attrs, sizeof(call.attrs));
    return 0;
}

static int check_device(const struct backend_device *d, const struct step *step, struct error *e)
{
    if (d->backend->tunes && d->backend->tunes(step))
        return d->info.exclusive
                   ? error_set(e, ERROR_UNSUPPORTED,
                               "tuning needs a second process on the GPU, whose compute mode allows one: an "
                               "administrator can set it to DEFAULT (nvidia-smi -c)")
                   : 0;
    error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves %s on %s", step_op_name(step),
              d->info.uuid);
    return error_detail_text(e, "key", "op");
}

static int begin(struct request *r, const struct rpc_arg *args, struct tune_task *task, struct error *e)
{
    struct account *account = r->connection->account;

    task->device = server_device(r->connection->server, &args[TUNE_device], e);
    if (!task->device || decode_step(args, &task->request, e) < 0 ||
        check_device(task->device, &task->request.step, e) < 0)
        return -1;
    if (account->tuning)
        return error_set(e, ERROR_LIMIT_EXCEEDED,
                         "a tuning of this user's is under way: wait for its reply, one is done at a time");
    task->waiting = r;
    task->account = account;
    tune_users_add(&task->users, account->uid);
    if (tune_begin(r->connection->server, task, e) < 0)
        return -1;
    account->tuning = true;
    return 0;
}

void handle_tune(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct tune_wait *wait = request_state(r);
    struct error e;

    (void)fds;
    wait->task = calloc(1, sizeof(*wait->task));
    if (!wait->task) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a tuning");
        request_end_error(r, &e);
    } else if (begin(r, args, wait->task, &e) < 0) {
        free(wait->task);
        request_end_error(r, &e);
    }
}

bool tune_can_cancel(const struct request *r)
{
    return r->method == METHOD_TUNE;
}

/* The measurer sees it before its next measurement, and hands the task back. */
void tune_cancel(struct request *r)
{
    const struct tune_wait *wait = request_state(r);

    atomic_store(&wait->task->cancelled, true);
}

/* ---- the reply ---- */

static const char *const state_names[] = {[TUNING_LEFT_OUT] = "left_out",
                                          [TUNING_MEASURED] = "measured",
                                          [TUNING_SLOWER] = "slower",
                                          [TUNING_FAILED] = "unfit"};

static void write_candidate(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct tuning_candidate *c = (const struct tuning_candidate *)of + i;

    rpc_write_record(out, RECORD(candidate_map, .variant = c->choice.variant, .what = c->text,
                                 .state = state_names[c->state], .us = c->us));
}

static void answer(const struct tune_task *task, const struct tuning_result *result, bool goes_on)
{
    request_end_record(task->waiting,
                       RECORD(tune_reply, .device = task->device->info.uuid, .machine = result->machine,
                              .problem = result->problem,
                              .candidates = {result->n, write_candidate, result->candidates}, .best = result->best,
                              .before = result->before, .usual = result->usual, .noise = result->noise,
                              .took_us = (double)(clock_now_ns() - task->begin_ns) * 1e-3,
                              .tried = tuning_tried(result), .goes_on = goes_on));
}

/* Whoever has cancelled it was told that this is the answer, also where all was measured by then. */
static bool end_cancelled(const struct tune_task *task)
{
    struct error cancelled;

    if (!atomic_load(&task->cancelled))
        return false;
    error_set(&cancelled, ERROR_CANCELLED, "the tuning was cancelled");
    request_end_error(task->waiting, &cancelled);
    return true;
}

void tune_answer(const struct tune_task *task)
{
    if (task->failed)
        request_end_error(task->waiting, &task->error);
    else if (!end_cancelled(task))
        answer(task, &task->result, false);
}

/* Before the candidates are known there is what runs, whatever that is. */
static void nothing_yet(const struct tune_task *task, struct tuning_result *ret)
{
    const struct step *step = &task->request.step;
    const struct backend_device *d = task->device;
    const char *const *names = d->backend->variants(task->device, op_get((enum op_id)step->op), step->plan.dtype);
    struct tuning_candidate *c = &ret->candidates[0];

    ret->n = 1;
    snprintf(ret->machine, sizeof(ret->machine), "%s", d->info.name);
    snprintf(ret->problem, sizeof(ret->problem), "%s", step_op_name(step));
    step_copy_variant(c->choice.variant, names && *names ? *names : "");
    snprintf(c->text, sizeof(c->text), "what runs now");
    c->us = NAN;
}

void tune_answer_early(const struct tune_task *task, const struct tuning_result *listed, bool goes_on)
{
    struct tuning_result *none = NULL;
    struct error e;

    if (end_cancelled(task))
        return;
    if (!listed)
        none = calloc(1, sizeof(*none));
    if (!listed && !none) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a reply");
        request_end_error(task->waiting, &e);
        return;
    }
    if (none)
        nothing_yet(task, none);
    answer(task, none ? none : listed, goes_on);
    free(none);
}

/* ---- tuning ---- */

static void write_tuned(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct tuned *t = ((const struct tuned *const *)of)[i];
    const bool counted = t->candidates > 0;

    rpc_write_record(out, RECORD(choice_map, .machine = t->machine, .problem = t->problem, .variant = t->choice.variant,
                                 .what = t->chosen, .us = t->us, .usual = t->usual, .usual_us = t->usual_us,
                                 .noise = t->noise, .at = (double)t->at_s, .tried = {counted, t->tried},
                                 .candidates = {counted, t->candidates}));
}

/* The shapes of a user's work, and when it was done, are for that user and administrators. */
static bool may_see_choice(const struct connection *viewer, const struct tuned *t)
{
    return access_allows(viewer, ACCESS_ADMINISTER) || tune_users_has(&t->users, viewer->account->uid);
}

/* Answers with the choices that the viewer may see, the newest first, from number `from` on. */
static void list_choices(struct request *r, const struct tune *t, uint64_t from)
{
    const struct tuned *shown[ROWS_MAX];
    uint64_t total = 0;
    uint32_t n = 0;

    for (unsigned i = t->n_tuned; i-- > 0;) {
        if (!may_see_choice(r->connection, &t->tuned[i]))
            continue;
        if (total++ >= from && n < ROWS_MAX)
            shown[n++] = &t->tuned[i];
    }
    request_end_record(r, RECORD(tuning_reply, .total = total, .choices = {n, write_tuned, shown}));
}

static int clear(struct request *r, struct error *e)
{
    struct tune *t = r->connection->server->tune;
    char who[CONNECTION_WHO_MAX];

    if (!access_allows(r->connection, ACCESS_ADMINISTER))
        return access_refuse(r->connection, "tuning", ACCESS_ADMINISTER, e);
    log_info("tuning", "action=clear %s", connection_who(r->connection, who));
    pthread_mutex_lock(&t->lock);
    t->n_tuned = 0;
    t->clear_wanted = true;
    pthread_cond_signal(&t->wanted);
    pthread_mutex_unlock(&t->lock);
    idle_forget(r->connection->server);
    return tune_start(r->connection->server, e);
}

void handle_tuning(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct tune *t = r->connection->server->tune;
    struct error e;

    (void)fds;
    if (args[TUNING_clear].b && clear(r, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    pthread_mutex_lock(&t->lock);
    list_choices(r, t, args[TUNING_from].u);
    pthread_mutex_unlock(&t->lock);
}
