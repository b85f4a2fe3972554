/* rude: a client that no program would be: requests with values from anywhere, torn, twice, with descriptors of
 * nothing or of sockets that linger, their answers read or not. Whatever it is told, it goes on.
 *
 *     rude --socket PATH --seed N --requests N */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rude.h"

enum { TRIES = 200, PAUSE_US = 20000, IDS = 24, SEND_MS = 50, FLOOD = 2000, LOOKS = 25 };

struct random dice;
msgpack_packer packer;
msgpack_sbuffer request;
int link_fd = -1;
static uint32_t made; /* requests */

/* ---- values ---- */

void text(const char *word)
{
    msgpack_pack_str(&packer, strlen(word));
    msgpack_pack_str_body(&packer, word, strlen(word));
}

static void number(void)
{
    static const uint64_t odd[] = {0, 1, 2, 3, 7, 1000, 4096, 1 << 20, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};

    if (random_chance(&dice, 10))
        msgpack_pack_int64(&packer, -(int64_t)random_below(&dice, 1000) - 1);
    else if (random_chance(&dice, 20))
        msgpack_pack_uint64(&packer, odd[random_below(&dice, sizeof(odd) / sizeof(odd[0]))]);
    else
        msgpack_pack_uint64(&packer, random_below(&dice, 64));
}

static void id(void)
{
    msgpack_pack_uint64(&packer, 1 + random_below(&dice, IDS));
}

static void any(unsigned depth)
{
    const unsigned what = random_below(&dice, depth ? 5 : 3);

    if (what == 0)
        msgpack_pack_nil(&packer);
    else if (what == 1)
        text("x");
    else if (what == 2)
        number();
    else {
        const unsigned n = random_below(&dice, 4);

        msgpack_pack_array(&packer, n);
        for (unsigned i = 0; i < n; i++)
            any(depth - 1);
    }
}

static void recent(void)
{
    msgpack_pack_uint32(&packer, made - 1 - random_below(&dice, 4));
}

static void any_value(void)
{
    any(4);
}

static void tensor(void)
{
    static const char *const dtypes[] = {"f32", "f16", "f64", "bf16", "u1"};
    const unsigned rank = random_below(&dice, 3);

    msgpack_pack_map(&packer, 4);
    text("buffer");
    id();
    text("offset");
    number();
    text("dtype");
    text(dtypes[random_chance(&dice, 50) ? 0 : random_below(&dice, 5)]);
    text("shape");
    msgpack_pack_array(&packer, rank);
    for (unsigned i = 0; i < rank; i++)
        number();
}

static void tensors(unsigned n)
{
    msgpack_pack_array(&packer, n);
    for (unsigned i = 0; i < n; i++)
        tensor();
}

static void step_of_sequence(void)
{
    msgpack_pack_map(&packer, 3);
    text("op");
    text(random_chance(&dice, 80) ? "add" : "gemm");
    text("in");
    msgpack_pack_array(&packer, 2);
    number();
    number();
    text("out");
    msgpack_pack_array(&packer, 1);
    number();
}

static void ops(void)
{
    const unsigned n = random_below(&dice, 4);

    msgpack_pack_map(&packer, 2);
    text("tensors");
    tensors(random_below(&dice, 4));
    text("ops");
    msgpack_pack_array(&packer, n);
    for (unsigned i = 0; i < n; i++)
        step_of_sequence();
}

static void one(const char *key, void (*value)(void))
{
    msgpack_pack_map(&packer, 1);
    text(key);
    value();
}

static void run(void)
{
    msgpack_pack_map(&packer, random_chance(&dice, 2) ? 3 : 4);
    text("op");
    text(random_chance(&dice, 90) ? "add" : "no such op");
    text("in");
    tensors(2);
    text("out");
    tensors(1);
    text("stream"); /* or too many values */
    number();
}

static void memory(void)
{
    msgpack_pack_map(&packer, 4);
    text("nfds");
    msgpack_pack_uint64(&packer, random_chance(&dice, 97) ? 1 : random_below(&dice, 3));
    text("kind");
    text("memfd");
    text("size");
    if (random_chance(&dice, 80))
        msgpack_pack_uint64(&packer, 4096U << random_below(&dice, 8));
    else
        number();
    text("fd");
    msgpack_pack_uint64(&packer, random_below(&dice, 10) ? 0 : random_below(&dice, 3));
}

static void parameters(const char *method)
{
    if (!strcmp(method, "run"))
        run();
    else if (!strcmp(method, "register"))
        memory();
    else if (!strcmp(method, "alloc"))
        one("size", number);
    else if (!strcmp(method, "release"))
        one(random_chance(&dice, 70) ? "buffer" : "program", id);
    else if (!strcmp(method, "run_program"))
        one("program", id);
    else if (!strcmp(method, "cancel"))
        one("msgid", recent);
    else if (!strcmp(method, "sequence") || !strcmp(method, "program"))
        ops();
    else if (random_chance(&dice, 50))
        msgpack_pack_map(&packer, 0);
    else
        one("x", any_value);
}

static void make_request(bool *ret_memory)
{
    static const char *const methods[] = {"run",   "run",     "run",         "register", "register",
                                          "alloc", "release", "cancel",      "program",  "sequence",
                                          "ping",  "hello",   "run_program", "stats",    "nothing"};
    const char *method = methods[random_below(&dice, sizeof(methods) / sizeof(methods[0]))];

    msgpack_sbuffer_clear(&request);
    msgpack_pack_array(&packer, 4);
    msgpack_pack_int(&packer, 0);
    msgpack_pack_uint32(&packer, random_chance(&dice, 99) ? made : made - 1);
    made++;
    text(method);
    msgpack_pack_array(&packer, 1);
    parameters(method);
    if (random_chance(&dice, 2) && request.size)
        request.data[random_below(&dice, (uint32_t)request.size)] ^= (char)(1 << random_below(&dice, 8));
    *ret_memory = !strcmp(method, "register") ? random_chance(&dice, 97) : random_chance(&dice, 5);
}

void make_empty(const char *method, bool answered)
{
    msgpack_sbuffer_clear(&request);
    msgpack_pack_array(&packer, answered ? 4 : 3);
    msgpack_pack_int(&packer, answered ? 0 : 2);
    if (answered)
        msgpack_pack_uint32(&packer, made++);
    text(method);
    msgpack_pack_array(&packer, 1);
    msgpack_pack_map(&packer, 0);
}

/* ---- the connection ---- */

static bool connect_anew(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (link_fd >= 0)
        close(link_fd);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    for (unsigned i = 0; i < TRIES; i++) {
        link_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (link_fd >= 0 && connect(link_fd, (struct sockaddr *)&address, sizeof(address)) == 0)
            return true;
        if (link_fd >= 0)
            close(link_fd);
        link_fd = -1;
        usleep(PAUSE_US);
    }
    return false;
}

static int make_memory(void)
{
    const int fd = memfd_create("rude", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)4096 << random_below(&dice, 8)) < 0)
        err(EXIT_FAILURE, "memory");
    if (random_chance(&dice, 90))
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

bool send_bytes(size_t n, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {request.data, n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct pollfd room = {.fd = link_fd, .events = POLLOUT};

    if (fd >= 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return poll(&room, 1, SEND_MS) == 1 && sendmsg(link_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* False: the daemon has hung up. */
static bool read_answers(void)
{
    char bytes[4096];
    ssize_t n;

    while ((n = recv(link_fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

/* So many questions, whose answers nobody reads, that the daemon reads no more of them. */
static void fill(void)
{
    for (unsigned i = 0; i < FLOOD; i++) {
        make_empty("stats", true);
        if (!send_bytes(request.size, -1))
            return;
    }
}

/* ---- what the daemon knows of this process ---- */

static unsigned count_own(const msgpack_object *clients)
{
    const msgpack_object *rows = value_of(clients, "clients");
    unsigned n = 0;

    for (uint32_t i = 0; rows && rows->type == MSGPACK_OBJECT_ARRAY && i < rows->via.array.size; i++)
        n += number_of(&rows->via.array.ptr[i], "pid") == (uint64_t)getpid();
    return n;
}

/* Whether this process has no connection but the new one, which says so. The daemon has long for the work of others. */
static bool is_alone(void)
{
    unsigned own = 0;

    for (unsigned i = 0; i < LOOKS; i++) {
        msgpack_unpacked answer;

        usleep(1000000);
        make_empty("clients", true);
        if (!send_bytes(request.size, -1) || !receive_answer(&answer, NULL))
            return true; /* it has ended, or is at its limits */
        own = count_own(result_of(&answer));
        msgpack_unpacked_destroy(&answer);
        if (own <= 1)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    unsigned requests = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--socket"))
            path = argv[i + 1];
        else if (!strcmp(argv[i], "--seed"))
            dice.state = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--requests"))
            requests = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    if (!path)
        errx(2, "usage: rude --socket PATH --seed N --requests N");
    msgpack_sbuffer_init(&request);
    msgpack_packer_init(&packer, &request, msgpack_sbuffer_write);
    for (unsigned i = 0; i < requests; i++) {
        bool with_memory, well;
        size_t n;
        int fd;

        if (link_fd < 0) {
            if (!connect_anew(path))
                return 0; /* it is refused for good */
            if (random_chance(&dice, 30)) {
                const bool stopped = ring_misuse();

                close(link_fd);
                link_fd = -1;
                if ((stopped || random_chance(&dice, 10)) && connect_anew(path) && !is_alone())
                    errx(EXIT_FAILURE, "connections that were closed long ago are there");
                continue;
            }
        }
        make_request(&with_memory);
        fd = !with_memory ? -1 : random_chance(&dice, 15) ? make_lingering() : make_memory();
        n = random_chance(&dice, 2) ? random_below(&dice, (uint32_t)request.size) + 1 : request.size;
        well = send_bytes(n, fd);
        if (fd >= 0)
            give_away(fd);
        if (well && random_chance(&dice, 60))
            well = read_answers();
        if (random_chance(&dice, 10))
            usleep(random_below(&dice, 3000));
        if (well && random_chance(&dice, 1)) {
            fill();
            well = false;
        }
        if (!well || random_chance(&dice, 2)) {
            close(link_fd);
            link_fd = -1;
        }
    }
    return 0;
}
