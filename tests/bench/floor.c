/* The floor: how little CPU a row can cost a client. One thread, epoll, keep-alive, requests written beforehand.
 *
 *     floor HOST PORT FILE WINDOW       FILE: request bodies, each behind its length as 8 hex digits
 *
 * Reads every reply and turns its output_ids into int32, nothing else: no checks, no copy kept, no journal.
 * Prints {"rows", "ids", "wall_seconds", "cpu_seconds"}. Any surprise ends it with a message and status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (4 << 20) /* bytes of the longest reply */

struct slot { int fd; char *in; size_t have, want, body; };

static char *file, *place, *end;
static char host[64];
static struct sockaddr_in address;
static long rows, ids;
static int32_t kept[1 << 20];

static void stop(const char *why) { fprintf(stderr, "floor: %s: %s\n", why, strerror(errno)); exit(1); }

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Send the next request on a connection; 0 when none is left. */
static int send_next(struct slot *s) {
    if (place >= end) return 0;
    char head[256], digits[9] = {0};
    memcpy(digits, place, 8);
    size_t size = strtoul(digits, NULL, 16);
    int length = snprintf(head, sizeof head,
        "POST /generate HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", host, size);
    char *message = malloc(length + size);
    memcpy(message, head, length);
    memcpy(message + length, place + 8, size);
    for (size_t sent = 0; sent < length + size;) {
        ssize_t n = write(s->fd, message + sent, length + size - sent);
        if (n < 0 && errno != EAGAIN) stop("write");
        if (n > 0) sent += n;
    }
    free(message);
    place += 8 + size;
    s->have = s->want = 0;
    return 1;
}

/* Count and convert the ids of one reply. */
static void take(struct slot *s) {
    s->in[s->want] = 0;
    char *at = strstr(s->in + s->body, "\"output_ids\":[");
    if (!at) stop("expected output_ids in a reply");
    long count = 0;
    for (at += 14; *at != ']';) {
        int32_t value = 0;
        while (*at >= '0' && *at <= '9') value = value * 10 + (*at++ - '0');
        kept[count++] = value;
        while (*at == ',' || *at == ' ') at++;
    }
    ids += count;
    rows++;
}

/* Read what came; 1 when a reply is whole. */
static int receive(struct slot *s) {
    ssize_t n = read(s->fd, s->in + s->have, ROOM - 1 - s->have);
    if (n <= 0) { if (n < 0 && errno == EAGAIN) return 0; stop("read"); }
    s->have += n;
    if (!s->want) {
        char *gap = memmem(s->in, s->have, "\r\n\r\n", 4);
        if (!gap) return 0;
        if (memcmp(s->in, "HTTP/1.1 200", 12)) stop("expected HTTP 200");
        *gap = 0;
        char *length = strcasestr(s->in, "content-length:");
        if (!length) stop("expected a Content-Length");
        s->body = gap + 4 - s->in;
        s->want = s->body + strtoul(length + 15, NULL, 10);
    }
    return s->have >= s->want;
}

static void load(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in) stop(path);
    fseek(in, 0, SEEK_END);
    long size = ftell(in);
    rewind(in);
    file = place = malloc(size);
    if (fread(file, 1, size, in) != (size_t)size) stop(path);
    end = file + size;
    fclose(in);
}

static void open_slot(struct slot *s, int poll) {
    int one = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    s->in = malloc(ROOM);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s->fd, (struct sockaddr *)&address, sizeof address)) stop("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(poll, EPOLL_CTL_ADD, s->fd, &event)) stop("epoll_ctl");
}

int main(int count, char **words) {
    if (count != 5) { fprintf(stderr, "usage: floor HOST PORT FILE WINDOW\n"); return 2; }
    int window = atoi(words[4]), busy = 0, poll = epoll_create1(0);
    snprintf(host, sizeof host, "%s:%s", words[1], words[2]);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(words[2]));
    inet_pton(AF_INET, words[1], &address.sin_addr);
    load(words[3]);
    struct slot *slots = calloc(window, sizeof *slots);
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < window && place < end; i++) {
        open_slot(&slots[i], poll);
        busy += send_next(&slots[i]);
    }
    struct epoll_event events[256];
    while (busy) {
        int n = epoll_wait(poll, events, 256, 60000);
        if (n <= 0) stop("no reply for a minute");
        for (int i = 0; i < n; i++) {
            struct slot *s = events[i].data.ptr;
            if (!receive(s)) continue;
            take(s);
            if (!send_next(s)) { busy--; epoll_ctl(poll, EPOLL_CTL_DEL, s->fd, NULL); }
        }
    }
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("{\"rows\": %ld, \"ids\": %ld, \"wall_seconds\": %f, \"cpu_seconds\": %f, \"peak_mb\": %f}\n", rows, ids,
        seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, use.ru_maxrss / 1024.0);
    return 0;
}
