/* Programs: sequences whose steps an executor keeps, so that only their operands are sent again. Thread: loop. */
#include <stdlib.h>

#include "executor/front.h"

struct front_program {
    struct list link; /* in front.programs */
    uint32_t number;
    uint64_t present; /* executors that have its steps, a bit each */
};

uint32_t front_program_of(const struct front_device *d, struct executor *x, const struct backend_job *job,
                          bool *ret_replay)
{
    struct front *f = d->front;
    struct front_program *p;

    *ret_replay = false;
    if (!job->program)
        return 0;
    p = (struct front_program *)(void *)*job->program;
    if (!p) {
        p = calloc(1, sizeof(*p));
        if (p)
            p->number = ids_take(&f->program_ids);
        if (!p || !p->number) {
            free(p);
            return 0;
        }
        list_append(&f->programs, &p->link);
        *job->program = (struct backend_program *)(void *)p;
    }
    *ret_replay = p->present >> x->bit & 1;
    return p->number;
}

void front_program_note(const struct backend_job *job, const struct executor *x)
{
    struct front_program *p = (struct front_program *)(void *)*job->program;

    p->present |= 1ULL << x->bit;
}

void front_program_free(struct backend_device *device, struct backend_program *program)
{
    struct front_program *p = (struct front_program *)(void *)program;
    struct front *f = front_device(device)->front;

    if (!p)
        return;
    for (unsigned i = 0; i < EXECUTORS_MAX; i++)
        if (p->present >> i & 1 && f->by_bit[i])
            front_send_number(f->by_bit[i], RECORD_PROGRAM_FREE, p->number, 0);
    list_remove(&p->link);
    ids_give(&f->program_ids, p->number);
    free(p);
}

void front_programs_forget(struct front *f, unsigned bit)
{
    list_for_each_safe (node, after, &f->programs) {
        list_entry(node, struct front_program, link)->present &= ~(1ULL << bit);
    }
}
