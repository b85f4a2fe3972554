#include "server/host_room.h"

#include "util/clock.h"
#include "util/host_memory.h"

/* What is known is used for so long. */
enum { FRESH_MS = 100 };
/* So much of all memory is left for all else, this many bytes at most: a machine that is busy with other things has
 * little available, and is to go on. */
enum { RESERVE_PART = 16, RESERVE_MOST = 256 << 20 };
/* Half of that is for users who have no more than this of the host's memory, when others have taken the rest. */
enum { MODEST = 16 << 20 };

static void ask(struct host_room *room)
{
    const uint64_t now = clock_now_ns();

    if (room->asked_ns && now - room->asked_ns < FRESH_MS * UINT64_C(1000000))
        return;
    if (!room->asked_ns)
        room->total = host_memory_total();
    room->available = host_memory_available();
    room->asked_ns = now;
}

int host_room_take(struct host_room *room, uint64_t users_bytes, uint64_t holes, struct error *e)
{
    uint64_t reserved, left;

    if (!holes)
        return 0;
    ask(room);
    reserved = room->total / RESERVE_PART;
    reserved = reserved < RESERVE_MOST ? reserved : RESERVE_MOST;
    reserved = room->holes + (users_bytes <= MODEST ? reserved / 2 : reserved);
    left = room->available > reserved ? room->available - reserved : 0;
    if (holes <= left) {
        room->holes += holes;
        return 0;
    }
    return error_set(e, ERROR_OUT_OF_MEMORY,
                     "%llu bytes without pages are asked for, and %llu of the host's memory are available for such; "
                     "ask for less, or touch the memory in your own process before you register it",
                     (unsigned long long)holes, (unsigned long long)left);
}
