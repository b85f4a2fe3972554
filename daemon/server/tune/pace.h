/* The pace of tuning: when it may measure on a device that has other work. Pure: the caller reads the clock and the
 * device. */
#ifndef KOPS_SERVER_TUNE_PACE_H
#define KOPS_SERVER_TUNE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* The state of one tuning. The caller sets `idle` and `since`; the rest begins as 0. */
struct tune_pace {
    bool idle;      /* no client waits for this tuning: it ends where the device stays busy */
    uint64_t since; /* jobs that the device had begun when the tuning began; later, when it last measured */
    uint64_t begin_ns, still_ns; /* begin of the pause; last time that the device was seen busy in it */
    uint64_t begun;              /* jobs that the device had begun at the latest look */
    unsigned most;               /* jobs that the device had at one time, at least 1 */
};

enum tune_word { TUNE_WAIT, TUNE_GO, TUNE_GIVE_UP };

/* Begins a pause before a measurement. `begun`: the jobs that the device has ever begun. */
void tune_pace_begin(struct tune_pace *p, uint64_t now_ns, uint64_t begun);

/* Tells what to do after a look at the device, which has `running` jobs now. TUNE_GO ends the pause: the caller
 * measures.
 */
enum tune_word tune_pace_look(struct tune_pace *p, uint64_t now_ns, unsigned running, uint64_t begun);

#endif
