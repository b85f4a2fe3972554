/* The live view of kopsctl top, on a terminal by ncurses. It shows the text of top.c, cut to the terminal's size.
 * Single-threaded. */
#include <curses.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/output.h"
#include "top.h"

static const int64_t answer_ms = 5000; /* the keys are dead meanwhile */
static const double delays_s[] = {0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30, 60};

enum { N_DELAYS = sizeof(delays_s) / sizeof(delays_s[0]), SUMMARY_LINES = 2 };

struct screen {
    struct ctl *ctl;
    SCREEN *terminal;
    sigset_t unblocked; /* the signal mask while it waits, and only then */
    struct top_view view;
    enum top_sort by;
    double delay_s;
    uint64_t next_ns;
    size_t first; /* index of the first client shown */
    bool paused, quit;
    char message[256]; /* in place of the keys; "": none */
};

static volatile sig_atomic_t ended;

static void end(int signal)
{
    ended = signal;
}

/* ---- drawing ---- */

/* Prints the lines of a text from screen line `y` on, `room` at most; the first is a table's titles where `titled`.
 * Returns the line after. */
static int put_text(char *text, int y, int room, bool titled)
{
    int from = y;
    char *rest = text;

    for (char *line; y < from + room && (line = strsep(&rest, "\n")) && (rest || *line); y++) {
        if (titled && y == from)
            attron(A_REVERSE);
        mvaddnstr(y, 0, line, COLS);
        if (titled && y == from) {
            if ((int)strlen(line) < COLS)
                hline(' ' | A_REVERSE, COLS - (int)strlen(line));
            attroff(A_REVERSE);
        }
    }
    return y;
}

static void put_message(const struct screen *s)
{
    char line[512];

    if (*s->message)
        snprintf(line, sizeof(line), "%s", s->message);
    else
        snprintf(line, sizeof(line), "q quit  p %s  sort: r d m l i n (%s)  +/- every %.3g s",
                 s->paused ? "go on" : "pause", top_sort_names[s->by], s->delay_s);
    attron(A_BOLD);
    mvaddnstr(LINES - 1, 0, line, COLS);
    attroff(A_BOLD);
}

/* Returns the line after a part of the view that takes `room` lines at most, its titles among them where it is a table.
 */
static int put_part(top_print *print, const struct top_view *v, int y, int room, bool titled)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);

    if (!to)
        return y;
    print(v, to, room > 1 ? (size_t)room - 1 : 0);
    fclose(to);
    y = put_text(text, y, room, titled);
    free(text);
    return y;
}

/* A third of the screen at most for the executors, and half of the rest for the clients where there are ops to show,
 * too. */
static void put_tables(struct screen *s, int y)
{
    struct top_view rest = s->view;
    int room, clients, ops = (int)s->view.n_ops + 1;

    if (s->first >= s->view.n_clients)
        s->first = s->view.n_clients ? s->view.n_clients - 1 : 0;
    rest.clients += s->first;
    rest.n_clients -= s->first;
    if (s->view.n_executors)
        y = put_part(top_print_executors, &s->view, y, (LINES - 1 - y) / 3, true) + 1;
    room = LINES - 1 - y;
    clients = room > ops + 1 + room / 2 ? room - ops - 1 : room / 2;
    y = put_part(top_print_clients, &rest, y, clients, true) + 1;
    put_part(top_print_ops, &s->view, y, LINES - 1 - y, true);
}

static void draw(struct screen *s)
{
    erase();
    if (s->view.now.clients) {
        top_sort(&s->view, s->by);
        put_tables(s, put_part(top_print_summary, &s->view, 0, SUMMARY_LINES + (int)s->view.n_devices, false) + 1);
    }
    put_message(s);
    refresh();
}

/* ---- looking and keys ---- */

static enum kops_code look(struct screen *s, struct kops_error *error)
{
    enum kops_code r = s->ctl->client ? KOPS_OK : ctl_try_connect(s->ctl, error);

    if (!r)
        r = top_look(s->ctl, &s->view, error);
    s->next_ns = ctl_clock_ns() + (uint64_t)(s->delay_s * 1e9);
    s->message[0] = 0;
    if (r && (ctl_is_away(r) || r == KOPS_ERR_QUOTA_EXCEEDED)) { /* another try may meet no error */
        s->ctl->client = kops_close(s->ctl->client);             /* another daemon may answer next */
        snprintf(s->message, sizeof(s->message), "no news, trying again: %s", text_clean(error->message));
        r = KOPS_OK;
    }
    return r;
}

static void change_delay(struct screen *s, int by)
{
    int i = 0;

    while (i < N_DELAYS - 1 && delays_s[i] < s->delay_s)
        i++;
    if (by > 0 && delays_s[i] > s->delay_s)
        i--; /* the delay lay between two steps */
    i += by;
    s->delay_s = delays_s[i < 0 ? 0 : i >= N_DELAYS ? N_DELAYS - 1 : i];
    s->next_ns = ctl_clock_ns() + (uint64_t)(s->delay_s * 1e9);
}

static void press(struct screen *s, int key)
{
    static const char sorts[] = {[TOP_BY_RATE] = 'r', [TOP_BY_DEVICE] = 'd',   [TOP_BY_MEMORY] = 'm',
                                 [TOP_BY_P99] = 'l',  [TOP_BY_INFLIGHT] = 'i', [TOP_BY_PID] = 'n'};

    switch (key) {
    case 'q':
        s->quit = true;
        break;
    case 'p':
    case ' ':
        s->paused = !s->paused;
        s->next_ns = ctl_clock_ns();
        break;
    case '+':
        change_delay(s, 1);
        break;
    case '-':
        change_delay(s, -1);
        break;
    case KEY_UP:
        s->first -= s->first > 0;
        break;
    case KEY_DOWN:
        s->first++;
        break;
    case 'L' & 0x1f: /* control-L */
        clearok(curscr, TRUE);
        break;
    default:
        for (unsigned i = 0; i < TOP_SORTS; i++)
            if (key == sorts[i])
                s->by = (enum top_sort)i;
        break;
    }
}

/* Waits for keys, a signal or another size until it is time to look again. Signals come nowhere else, so that none
 * comes between a look at `ended` and the wait. */
static void wait_for_keys(struct screen *s)
{
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    uint64_t now = ctl_clock_ns(), ns = s->next_ns > now ? s->next_ns - now : 0;
    struct timespec wait = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    int key;

    if (ppoll(&keys, 1, s->paused ? NULL : &wait, &s->unblocked) > 0 && keys.revents & (POLLHUP | POLLERR))
        s->quit = true; /* the terminal is gone */
    while (!s->quit && (key = getch()) != ERR)
        press(s, key);
}

/* ---- the terminal ---- */

static enum ctl_exit start(struct screen *s)
{
    static const int endings[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = end};
    sigset_t blocked;

    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return ctl_complain("unsupported",
                            "the live view wants a terminal; `kopsctl top --batch` prints tables instead");
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGWINCH);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        sigaddset(&blocked, endings[i]);
        sigaction(endings[i], &action, NULL); /* before ncurses, which would take the signals as a failure */
    }
    sigprocmask(SIG_BLOCK, &blocked, &s->unblocked);
    s->terminal = newterm(NULL, stdout, stdin);
    if (!s->terminal)
        return ctl_complain("unsupported", "the terminal `%s` is not known; set TERM, or use `kopsctl top --batch`",
                            getenv("TERM") ? getenv("TERM") : "");
    set_term(s->terminal);
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    curs_set(0);
    return CTL_OK;
}

enum ctl_exit top_screen(struct ctl *ctl, double delay_s, enum top_sort by)
{
    struct screen s = {.ctl = ctl, .by = by, .delay_s = delay_s};
    enum kops_code r = KOPS_OK;
    enum ctl_exit status;

    if (!ctl->timeout_ms)
        ctl->timeout_ms = answer_ms;
    ctl->reconnect_ms = KOPS_NO_RECONNECT; /* a daemon that is away is shown as such */
    status = ctl_connect(ctl);
    if (!status)
        status = start(&s);
    if (status)
        return status;
    while (!r && !s.quit && !ended) {
        if (!s.paused && ctl_clock_ns() >= s.next_ns)
            r = look(&s, &ctl->error);
        if (!r) {
            draw(&s);
            wait_for_keys(&s);
        }
    }
    endwin();
    delscreen(s.terminal);
    top_free(&s.view);
    return r ? ctl_failed("top", &ctl->error) : CTL_OK;
}
