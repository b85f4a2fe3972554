/* Inside a simulated process: one C library call at a time. */
#ifndef KOPS_TESTS_SIMULATION_PRELOAD_H
#define KOPS_TESTS_SIMULATION_PRELOAD_H

#include <dlfcn.h>
#include <pthread.h>

#include "world.h"

#define EPOCH_NS (1800000000ULL * 1000000000ULL) /* CLOCK_REALTIME when CLOCK_MONOTONIC is 0 */
#define EXPORT   __attribute__((visibility("default")))

/* REAL(read)(fd, …): the C library's function. */
#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) real_;                                                                                \
        if (!real_)                                                                                                    \
            real_ = (__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name);                                             \
        real_;                                                                                                         \
    })

extern struct world *world;
extern __thread struct party *me; /* NULL: this thread is no party */
extern uint64_t program_hash;
extern __thread bool my_turn; /* a signal's handler may run while it is another's */

/* attach.c */
pid_t process_number(void);
bool simulated(void); /* the caller is a party and has the turn */
unsigned party_number(const struct party *p);
uint64_t party_key(const void *address);
#define step() step_at(__func__)
void step_at(const char *call);                   /* something was done: others may come first now */
void step_within(void);                           /* the same between two calls of the C library, in no time */
void give_way(void);                              /* others come first, though the caller can go on */
bool wait_until(uint64_t until_ns, uint64_t key); /* false: it is until_ns */
void wake_all(uint64_t key);
void wake_one(uint64_t key);
void changed_descriptors(bool alone); /* alone: one that no other process has */
void leave(bool process);             /* the caller's last turn */

/* descriptors.c */
void look_for_others(void); /* of this process, whether descriptors that they wait for are ready */
void forget_alone(void);    /* another process has all descriptors, too */

/* machine.c */
long order_of_files(long order, int a, int b); /* of two descriptors: what kcmp(2) said of them */

/* clocks.c */
uint64_t timers_expire(void); /* when the next one is due */
void timers_forget(int fd);   /* it is closed */

#endif
