/* When a measurement may begin on a device that others use: pure, of what one sees of the device. */
#ifndef KOPS_SERVER_TUNE_PACE_H
#define KOPS_SERVER_TUNE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Of a tuning: 0, but for these. */
struct tune_pace {
    bool idle;      /* nobody waits for it: it gives up where one that was asked for goes on in the end */
    uint64_t since; /* the device's jobs that had begun when the tuning began, and then at its latest measurement */
    /* Of the pause that is under way. */
    uint64_t begin_ns, still_ns, begun;
    unsigned most;
};

enum tune_word { TUNE_WAIT, TUNE_GO, TUNE_GIVE_UP };

/* A pause begins. `begun`: the jobs that the device ever had. */
void tune_pace_begin(struct tune_pace *p, uint64_t now_ns, uint64_t begun);

/* What a look at the device says, which runs so many jobs now. After TUNE_GO comes the measurement. */
enum tune_word tune_pace_look(struct tune_pace *p, uint64_t now_ns, unsigned running, uint64_t begun);

#endif
