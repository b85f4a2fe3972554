/* Marks: the values that a stream's flag gets, one behind each execution. A kernel can write to the page of flags, as
 * to all that its context has mapped. So a mark cannot be known before the GPU writes it: it is random, and an
 * execution has ended only when the flag has the value of that execution, or of one behind it. Thread: loop. */
#ifndef KOPS_CUDA_MARKS_H
#define KOPS_CUDA_MARKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { MARKS_WINDOW = 64 /* outstanding ones of a stream; a power of two */ };

/* Numbers that nobody can predict who has not read this struct, which lies in memory of the process alone. */
struct cuda_random {
    uint64_t key[2], drawn;
};

/* False: the kernel gives no random numbers, which it does on every machine that has booted. */
bool cuda_random_seed(struct cuda_random *random);
/* Never 0. */
uint64_t cuda_random_next(struct cuda_random *random);

struct cuda_marks {
    uint64_t issued, ended; /* how many; the GPU has written the value of the `ended`th */
    uint64_t seen;          /* that value; 0 before the first */
    uint64_t values[MARKS_WINDOW];
};

/* The value of the next mark, which counts once cuda_marks_issue() was called. */
uint64_t cuda_marks_next(struct cuda_marks *marks, struct cuda_random *random);
/* The next mark is on the stream. Returns its number, from 1. */
static inline uint64_t cuda_marks_issue(struct cuda_marks *marks)
{
    return ++marks->issued;
}

/* Looks for the flag's value among the outstanding ones. Another one is nobody's: a kernel wrote it, or one half of the
 * word is new. */
void cuda_marks_look(struct cuda_marks *marks, uint64_t value);

/* How many have ended, by the flag. */
static inline uint64_t cuda_marks_ended(struct cuda_marks *marks, const atomic_ullong *flag)
{
    const uint64_t value = atomic_load_explicit(flag, memory_order_acquire);

    if (value != marks->seen)
        cuda_marks_look(marks, value);
    return marks->ended;
}

#endif
