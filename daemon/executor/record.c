/* Rings between daemon and executor, the region that has them, and records of steps. */
#include "executor/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/error.h"

/* ---- rings ---- */

/* Before each record. A record never wraps: where it would, padding fills the ring's end. */
struct head {
    uint32_t size;   /* bytes of the record, without the head */
    uint32_t filler; /* 1: this is padding */
};

void ring_init(struct ring *r, struct ring_words *words, unsigned char *bytes)
{
    *r = (struct ring){.words = words, .bytes = bytes};
}

static uint64_t whole(uint32_t size)
{
    return sizeof(struct head) + (((uint64_t)size + 7) & ~UINT64_C(7));
}

static unsigned char *at(const struct ring *r, uint64_t position)
{
    return r->bytes + (position & (RING_BYTES - 1));
}

static uint64_t to_end(uint64_t position)
{
    return RING_BYTES - (position & (RING_BYTES - 1));
}

static void write_head(const struct ring *r, uint64_t position, uint32_t size, uint32_t filler)
{
    const struct head head = {.size = size, .filler = filler};

    memcpy(at(r, position), &head, sizeof(head));
}

bool ring_read_on(struct ring *r)
{
    const uint64_t read = atomic_load_explicit(&r->words->read, memory_order_acquire);

    if (read == r->other || read - r->other > r->position - r->other)
        return false; /* the latter is nonsense: the reader cannot be ahead of the writer */
    r->other = read;
    return true;
}

void *ring_reserve(struct ring *r, uint32_t size)
{
    const uint64_t bytes = whole(size), left = to_end(r->position), padding = left < bytes ? left : 0;

    if (RING_BYTES - (r->position - r->other) < padding + bytes)
        ring_read_on(r);
    if (size > RING_RECORD_MAX || RING_BYTES - (r->position - r->other) < padding + bytes)
        return NULL;
    if (padding)
        write_head(r, r->position, (uint32_t)(padding - sizeof(struct head)), 1);
    write_head(r, r->position + padding, size, 0);
    r->step = padding + bytes;
    return at(r, r->position + padding) + sizeof(struct head);
}

void ring_publish(struct ring *r)
{
    r->position += r->step;
    atomic_store_explicit(&r->words->written, r->position, memory_order_release);
}

static bool read_head(struct ring *r, uint64_t position, struct head *ret)
{
    const uint64_t there = r->other - position;

    if (there < sizeof(*ret)) {
        r->corrupt = r->corrupt || there != 0;
        return false;
    }
    memcpy(ret, at(r, position), sizeof(*ret));
    atomic_signal_fence(memory_order_seq_cst); /* keeps the compiler from reading the shared head again */
    r->corrupt = ret->size > RING_BYTES || whole(ret->size) > there || whole(ret->size) > to_end(position);
    return !r->corrupt;
}

const void *ring_peek(struct ring *r, uint32_t *ret_size)
{
    uint64_t position = r->position;
    struct head head;

    if (r->corrupt)
        return NULL;
    if (r->other == position) {
        r->other = atomic_load_explicit(&r->words->written, memory_order_acquire);
        r->corrupt = r->other - position > RING_BYTES || r->other % 8;
        if (r->corrupt || r->other == position)
            return NULL;
    }
    if (!read_head(r, position, &head))
        return NULL;
    if (head.filler) {
        position += whole(head.size);
        if (!read_head(r, position, &head))
            return NULL;
        r->corrupt = head.filler != 0; /* a writer pads once */
        if (r->corrupt)
            return NULL;
    }
    r->step = position - r->position + whole(head.size);
    *ret_size = head.size;
    return at(r, position) + sizeof(head);
}

void ring_next(struct ring *r)
{
    r->position += r->step;
    atomic_store_explicit(&r->words->read, r->position, memory_order_release);
}

/* ---- the region ---- */

struct executor_region *region_map(int fd, struct error *e)
{
    void *at = mmap(NULL, sizeof(struct executor_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at != MAP_FAILED)
        return at;
    error_set(e, ERROR_OUT_OF_MEMORY, "mapping an executor's shared memory: %s", strerror(errno));
    return NULL;
}

struct executor_region *region_new(int *ret_fd, struct error *e)
{
    int fd = memfd_create("kopsd-executor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct executor_region *region;

    if (fd < 0) {
        error_shortage(e, errno, "memfd_create");
        return NULL;
    }
    /* Sealed: a file that the executor cut would end the daemon at its next look. */
    if (ftruncate(fd, sizeof(*region)) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "an executor's shared memory: %s", strerror(errno));
        goto close_fd;
    }
    region = region_map(fd, e);
    if (!region)
        goto close_fd;
    *ret_fd = fd;
    return region;

close_fd:
    close(fd);
    return NULL;
}

struct executor_region *region_unmap(struct executor_region *region)
{
    if (region)
        munmap(region, sizeof(*region));
    return NULL;
}

/* ---- packed steps ---- */

/* A packed step is this, then its used attributes, its plan and its operands. Only what the step uses is there: a
 * record goes from one core's cache to another's, line by line. */
struct packed {
    uint32_t bytes;
    uint16_t op;
    uint8_t n_inputs, n_outputs;
    int8_t in_place;
    uint8_t kind, dtype, out_dtype;
    uint8_t rank;         /* an elementwise plan's rank; a product's number of extra operands: a bias, or two scales */
    uint16_t param_bytes; /* parameter bytes of a kernel's plan */
    char variant[STEP_VARIANT_BYTES];
};

/* An elementwise plan, before the shape and the strides of its operands. */
struct packed_elementwise {
    uint64_t count;
    uint64_t contiguous;
};

static uint32_t attrs_of(const struct packed *head)
{
    return head->op < OP_COUNT ? op_get((enum op_id)head->op)->n_attrs : 0;
}

static uint32_t operands_of(const struct packed *head)
{
    return (uint32_t)head->n_inputs + head->n_outputs;
}

static uint32_t plan_bytes(const struct packed *head)
{
    switch ((enum plan_kind)head->kind) {
    case PLAN_ELEMENTWISE:
        return (uint32_t)(sizeof(struct packed_elementwise) + head->rank * (1 + operands_of(head)) * sizeof(int64_t));
    case PLAN_GEMM:
        return (uint32_t)(offsetof(struct plan_gemm, extra) + head->rank * sizeof(struct plan_matrix));
    case PLAN_KERNEL:
        return (uint32_t)offsetof(struct plan_kernel, params) + head->param_bytes;
    }
    return 0;
}

static uint32_t all_bytes(const struct packed *head)
{
    return (uint32_t)(sizeof(*head) + attrs_of(head) * sizeof(union op_attr_value) + plan_bytes(head) +
                      operands_of(head) * sizeof(struct step_operand));
}

static void make_head(const struct step *step, struct packed *ret_head)
{
    *ret_head = (struct packed){.op = step->op,
                                .n_inputs = step->n_inputs,
                                .n_outputs = step->n_outputs,
                                .in_place = step->in_place,
                                .kind = (uint8_t)step->plan.kind,
                                .dtype = (uint8_t)step->plan.dtype,
                                .out_dtype = (uint8_t)step->plan.out_dtype};
    if (step->plan.kind == PLAN_ELEMENTWISE)
        ret_head->rank = (uint8_t)step->plan.elementwise.rank;
    else if (step->plan.kind == PLAN_GEMM)
        ret_head->rank = (uint8_t)plan_gemm_extras(&step->plan.gemm);
    else if (step->plan.kind == PLAN_KERNEL)
        ret_head->param_bytes = step->plan.kernel.param_bytes;
    memcpy(ret_head->variant, step->variant, sizeof(ret_head->variant));
    ret_head->bytes = all_bytes(ret_head);
}

/* Both copy `size` bytes and return the place behind them. */
static unsigned char *put(unsigned char *at, const void *from, size_t size)
{
    memcpy(at, from, size);
    return at + size;
}

static const unsigned char *get(const unsigned char *at, void *to, size_t size)
{
    memcpy(to, at, size);
    return at + size;
}

static unsigned char *put_elementwise(unsigned char *at, const struct plan_elementwise *plan, uint32_t operands)
{
    const struct packed_elementwise packed = {.count = plan->count, .contiguous = plan->contiguous};
    const size_t row = plan->rank * sizeof(int64_t);

    at = put(at, &packed, sizeof(packed));
    at = put(at, plan->shape, row);
    for (uint32_t i = 0; i < operands; i++)
        at = put(at, plan->strides[i], row);
    return at;
}

static const unsigned char *get_elementwise(const unsigned char *at, struct plan_elementwise *plan, unsigned rank,
                                            uint32_t operands)
{
    const size_t row = rank * sizeof(int64_t);
    struct packed_elementwise packed;

    at = get(at, &packed, sizeof(packed));
    plan->rank = rank;
    plan->count = packed.count;
    plan->contiguous = packed.contiguous != 0;
    at = get(at, plan->shape, row);
    for (uint32_t i = 0; i < operands; i++)
        at = get(at, plan->strides[i], row);
    return at;
}

uint32_t step_packed_bytes(const struct step *step)
{
    struct packed head;

    make_head(step, &head);
    return head.bytes;
}

uint32_t step_pack(const struct step *step, const uint32_t *memories, unsigned char *into)
{
    unsigned char *at = into;
    struct packed head;

    make_head(step, &head);
    at = put(at, &head, sizeof(head));
    at = put(at, step->attrs, attrs_of(&head) * sizeof(step->attrs[0]));
    if (step->plan.kind == PLAN_ELEMENTWISE)
        at = put_elementwise(at, &step->plan.elementwise, operands_of(&head));
    else if (step->plan.kind == PLAN_GEMM)
        at = put(at, &step->plan.gemm, plan_bytes(&head));
    else
        at = put(at, &step->plan.kernel, plan_bytes(&head));
    for (unsigned i = 0; i < operands_of(&head); i++) {
        struct step_operand operand = step->operands[i];

        operand.memory = memories[i];
        at = put(at, &operand, sizeof(operand));
    }
    return head.bytes;
}

/* Whether the head describes a step that fits. */
static bool is_sound(const struct packed *head, uint32_t size)
{
    if (head->op > OP_COUNT || head->kind > PLAN_KERNEL || operands_of(head) > STEP_MAX_OPERANDS)
        return false;
    if (head->kind == PLAN_GEMM && (head->rank > 2 || operands_of(head) != 3U + head->rank))
        return false;
    if (head->kind == PLAN_KERNEL && head->param_bytes > KERNEL_PARAM_BYTES)
        return false;
    if (head->kind == PLAN_ELEMENTWISE && (head->rank > TENSOR_MAX_RANK || operands_of(head) > PLAN_MAX_OPERANDS))
        return false;
    return head->bytes == all_bytes(head) && head->bytes <= size;
}

uint32_t step_unpack(const unsigned char *from, uint32_t size, struct step *ret_step)
{
    struct plan *plan = &ret_step->plan;
    const unsigned char *at;
    struct packed head;

    if (size < sizeof(head))
        return 0;
    at = get(from, &head, sizeof(head));
    if (!is_sound(&head, size))
        return 0;
    ret_step->op = head.op;
    ret_step->n_inputs = head.n_inputs;
    ret_step->n_outputs = head.n_outputs;
    ret_step->in_place = head.in_place;
    memcpy(ret_step->variant, head.variant, sizeof(head.variant));
    ret_step->variant[sizeof(head.variant) - 1] = '\0';
    memset(ret_step->tensors, 0, sizeof(ret_step->tensors));
    at = get(at, ret_step->attrs, attrs_of(&head) * sizeof(ret_step->attrs[0]));
    plan->kind = (enum plan_kind)head.kind;
    plan->dtype = (enum dtype)head.dtype;
    plan->out_dtype = (enum dtype)head.out_dtype;
    if (plan->kind == PLAN_ELEMENTWISE)
        at = get_elementwise(at, &plan->elementwise, head.rank, operands_of(&head));
    else if (plan->kind == PLAN_GEMM)
        at = get(at, &plan->gemm, plan_bytes(&head));
    else
        at = get(at, &plan->kernel, plan_bytes(&head));
    if (plan->kind == PLAN_GEMM) {
        plan->gemm.has_bias = head.rank == 1;
        plan->gemm.has_scales = head.rank == 2;
    }
    if (plan->kind == PLAN_KERNEL && plan->kernel.param_bytes != head.param_bytes)
        return 0;
    get(at, ret_step->operands, operands_of(&head) * sizeof(ret_step->operands[0]));
    ret_step->variant_used[0] = '\0';
    return head.bytes;
}
