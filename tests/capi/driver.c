/* A C client that uses the API rightly and wrongly, for a run under sanitizers: driver GEMM_MODEL CONV_MODEL
 * [DAMAGED_FILE ...]. Exit status 0 if every answer was as it should be; a damaged file may be refused or serve, but
 * not crash. */
#include "tilewise.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(HOLDS)                                                                                                  \
    do {                                                                                                               \
        if (!(HOLDS)) {                                                                                                \
            printf("line %d: %s (%s)\n", __LINE__, #HOLDS, tilewise_last_error());                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ROUNDS = 60, THREADS = 4 };

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static tilewise_problem some_gemm(uint64_t *state)
{
    static const int64_t odd[] = {0, -1, INT64_MAX, INT64_MIN, 1LL << 32, 1LL << 40};
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_GEMM};
    int64_t *size[3] = {&p.of.gemm.m, &p.of.gemm.n, &p.of.gemm.k};
    for (int i = 0; i < 3; i++)
        *size[i] = next(state) % 16 ? (int64_t)(1 + next(state) % 5000) : odd[next(state) % 6];
    memcpy(p.of.gemm.layout, next(state) % 2 ? "rcr" : "ccr", 4);
    return p;
}

static tilewise_problem some_conv(uint64_t *state)
{
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_CONV};
    int64_t g = 1 + next(state) % 3, side = 1 + next(state) % 60, f = 1 + next(state) % 3;
    p.of.conv = (tilewise_conv){.n = 1 + next(state) % 64,
                                .c = g * (1 + next(state) % 200),
                                .k = g * (1 + next(state) % 200),
                                .g = g,
                                .hi = side,
                                .wi = side,
                                .y = f,
                                .x = f,
                                .stride_h = 1 + next(state) % 2,
                                .stride_w = 1,
                                .pad_h = next(state) % 3,
                                .pad_w = 1,
                                .dilation_h = 1,
                                .dilation_w = 1,
                                .di = 1,
                                .z = 1,
                                .stride_d = 1,
                                .dilation_d = 1};
    int64_t *columns = &p.of.conv.n;
    static const int64_t odd[] = {0, -1, INT64_MAX, INT64_MIN, 1LL << 40};
    if (next(state) % 4 == 0)
        columns[next(state) % 19] = odd[next(state) % 5];
    return p;
}

static void ask(const tilewise_model *m, const tilewise_problem *p, bool sound)
{
    char name[256] = "x";
    int32_t best[4];
    double scores[4];
    int supported = tilewise_is_supported(m, p), code = tilewise_select_kernel(m, p, name, sizeof name);
    int found = tilewise_rank(m, p, 4, best, scores);
    if (!sound && supported == 1 &&
        code == TILEWISE_UNSUPPORTED) { /* a damaged formula exceeds int64 where rules do not */
        EXPECT(found == code);
    } else {
        EXPECT((supported == 1) == (code == 0) && (supported == 0) == (code == TILEWISE_NO_KERNEL));
        EXPECT(supported < 0 ? found == supported && code == supported : (found > 0) == supported);
    }
    EXPECT((code == 0) == (*name != 0));
    if (found > 0) {
        char first[256];
        EXPECT(!tilewise_kernel_name(m, best[0], first, sizeof first) && !strcmp(first, name));
        EXPECT(tilewise_select_kernel(m, p, first, strlen(name)) == TILEWISE_BUFFER_TOO_SMALL && !*first);
        EXPECT(!tilewise_select_kernel(m, p, first, strlen(name) + 1));
    }
}

static void ask_all(const tilewise_model *m, uint64_t seed, int rounds, bool sound)
{
    for (int i = 0; i < rounds; i++) {
        tilewise_problem gemm = some_gemm(&seed), conv = some_conv(&seed);
        int is_gemm = !strncmp(tilewise_target(m), "gemm_", 5);
        ask(m, is_gemm ? &gemm : &conv, sound);
        EXPECT(tilewise_is_supported(m, is_gemm ? &conv : &gemm) == TILEWISE_BAD_PROBLEM);
    }
}

static void *in_thread(void *model)
{
    ask_all(model, (uint64_t)(uintptr_t)&model, ROUNDS / 4, true);
    return NULL;
}

static void misuse(const char *path)
{
    char name[256];
    int32_t best;
    uint64_t seed = 1;
    tilewise_model *m = (tilewise_model *)&seed;
    tilewise_problem p = {.size = sizeof p, .op = TILEWISE_GEMM, .of.gemm = {8, 8, 8, "rcr"}};
    EXPECT(tilewise_open(NULL, &m) == TILEWISE_BAD_ARGUMENT && !m && *tilewise_last_error());
    EXPECT(tilewise_open(path, NULL) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_open("/nowhere", &m) == TILEWISE_BAD_FILE && !m);
    EXPECT(tilewise_open("/", &m) == TILEWISE_BAD_FILE && !m);
    EXPECT(tilewise_open("/dev/null", &m) == TILEWISE_BAD_FILE && !m);
    tilewise_close(NULL);
    EXPECT(tilewise_select_kernel(NULL, &p, name, sizeof name) == TILEWISE_NOT_READY);
    EXPECT(tilewise_kernel_count(NULL) == TILEWISE_NOT_READY && !tilewise_target(NULL) && !tilewise_export_json(NULL));
    EXPECT(tilewise_run(NULL, &p, name, name, name, NULL) == TILEWISE_NOT_READY);
    EXPECT(!tilewise_open(path, &m));
    EXPECT(tilewise_select_kernel(m, NULL, name, sizeof name) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_select_kernel(m, &p, NULL, sizeof name) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_select_kernel(m, &p, name, 0) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_rank(m, &p, 1, NULL, NULL) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_rank(m, &p, -1, &best, NULL) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_kernel_name(m, -1, name, sizeof name) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_kernel_name(m, tilewise_kernel_count(m), name, sizeof name) == TILEWISE_BAD_ARGUMENT);
    EXPECT(tilewise_run(m, &p, NULL, name, name, NULL) == TILEWISE_BAD_ARGUMENT);
    p.size--;
    EXPECT(tilewise_select_kernel(m, &p, name, sizeof name) == TILEWISE_BAD_ARGUMENT);
    p.size++, p.op = 7;
    EXPECT(tilewise_select_kernel(m, &p, name, sizeof name) == TILEWISE_BAD_ARGUMENT);
    p.op = TILEWISE_GEMM, memset(p.of.gemm.layout, 'r', sizeof p.of.gemm.layout);
    EXPECT(tilewise_select_kernel(m, &p, name, sizeof name) == TILEWISE_BAD_PROBLEM);
    tilewise_close(m);
}

/* CK Tile's functions: before init, with a file of the other kind, and used properly. */
static void ck_names(const char *gemm, const char *conv)
{
    char name[256];
    float ms = 0;
    uint16_t a[64] = {0x3f80}, b[64] = {0x4000}, c[64] = {0};
    ConvProblemC p = {1, 1, 8, 8, 1, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0};
    EXPECT(dispatcher_get_kernel_count() == 0 && !dispatcher_is_supported(64, 64, 64));
    EXPECT(dispatcher_select_kernel(64, 64, 64, name, sizeof name) == -1 && !dispatcher_export_registry_json());
    EXPECT(dispatcher_run_gemm(a, b, c, 8, 8, 8, &ms) == -1 && ms == -1);
    EXPECT(dispatcher_init() == -1 && conv_dispatcher_init() == -1);
    EXPECT(dispatcher_init_from(conv, "rcr") == -1 && conv_dispatcher_init_from(gemm) == -1);
    EXPECT(dispatcher_init_from(gemm, "xyz") == -1 && dispatcher_init_from(NULL, "rcr") == -1);
    EXPECT(conv_dispatcher_select_kernel(&p, name, sizeof name) == -1 && !conv_dispatcher_is_supported(&p));
    EXPECT(!dispatcher_init_from(gemm, "rcr") && !dispatcher_init_from(gemm, "rcr"));
    EXPECT(dispatcher_get_kernel_count() > 0 && dispatcher_is_supported(64, 64, 64) == 1);
    EXPECT(dispatcher_is_supported(0, -1, INT64_MAX) == 0);
    EXPECT(!dispatcher_select_kernel(64, 64, 64, name, sizeof name) && *name);
    int length = (int)strlen(name);
    EXPECT(!dispatcher_select_kernel(64, 64, 64, name, length + 1) && (int)strlen(name) == length);
    EXPECT(dispatcher_select_kernel(64, 64, 64, name, length) == -1 && !*name);
    for (int size = -1; size < 3; size++)
        EXPECT(dispatcher_select_kernel(64, 64, 64, name, size) == -1);
    EXPECT(dispatcher_select_kernel(64, 64, 64, NULL, sizeof name) == -1);
    EXPECT(dispatcher_run_gemm(NULL, b, c, 8, 8, 8, &ms) == -1 && dispatcher_run_gemm(a, b, NULL, 8, 8, 8, &ms) == -1);
    EXPECT(dispatcher_run_gemm(a, b, c, 8, 8, 8, NULL) == 0 && dispatcher_run_gemm(a, b, c, 0, 8, 8, &ms) == -1);
    EXPECT(!dispatcher_run_gemm(a, b, c, 8, 8, 8, &ms) && ms >= 0 && c[0] == 0x4000);
    EXPECT(dispatcher_run_gemm(a, NULL, c, 8, 8, 8, &ms) == -1 && ms == -1);
    EXPECT(!conv_dispatcher_init_from(conv) && conv_dispatcher_get_kernel_count() > 0);
    EXPECT(conv_dispatcher_is_supported(&p) == 1 && !conv_dispatcher_select_kernel(&p, name, sizeof name));
    EXPECT(conv_dispatcher_run(a, b, c, &p, NULL) >= 0 && c[0] == 0x4000);
    EXPECT(conv_dispatcher_run(a, b, c, &p, a) == -1 && conv_dispatcher_run(a, b, c, NULL, NULL) == -1);
    EXPECT(conv_dispatcher_run(NULL, b, c, &p, NULL) == -1 && conv_dispatcher_run(a, NULL, c, &p, NULL) == -1);
    EXPECT(conv_dispatcher_run(a, b, NULL, &p, NULL) == -1 && conv_dispatcher_select_kernel(NULL, name, 256) == -1);
    EXPECT(conv_dispatcher_select_kernel(&p, NULL, 256) == -1 && conv_dispatcher_select_kernel(&p, name, 3) == -1);
    EXPECT(conv_dispatcher_select_kernel(&p, name, 0) == -1 && conv_dispatcher_select_kernel(&p, name, -1) == -1);
    EXPECT(conv_dispatcher_init_from(NULL) == -1 && conv_dispatcher_is_supported(&p) == 1);
    p.direction = 1;
    EXPECT(conv_dispatcher_select_kernel(&p, name, sizeof name) == -1 && !*name);
    p.direction = INT_MAX;
    EXPECT(!conv_dispatcher_is_supported(&p) && !conv_dispatcher_is_supported(NULL));
    EXPECT(!conv_dispatcher_cleanup() && !conv_dispatcher_cleanup() && conv_dispatcher_get_kernel_count() == 0);
    dispatcher_cleanup();
    dispatcher_cleanup();
    EXPECT(dispatcher_is_supported(64, 64, 64) == 0);
}

/* Some threads select while others load and clean up. A result may be an error, but never a mixture. */
static void *ck_asking(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        char name[256];
        ConvProblemC p = {1, 1, 8, 8, 1, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0};
        int code = dispatcher_select_kernel(64, 64, 64, name, sizeof name);
        EXPECT(code ? code == -1 : !strncmp(name, "gemm_", 5));
        code = conv_dispatcher_select_kernel(&p, name, sizeof name);
        EXPECT(code ? code == -1 : !strncmp(name, "grouped_conv_", 13));
        EXPECT(dispatcher_get_kernel_count() >= 0 && conv_dispatcher_get_kernel_count() >= 0);
    }
    return unused;
}

static void ck_names_in_threads(const char *gemm, const char *conv)
{
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        EXPECT(!pthread_create(&threads[t], NULL, ck_asking, NULL));
    for (int i = 0; i < ROUNDS / 10; i++) {
        EXPECT(!dispatcher_init_from(gemm, "rcr") && !conv_dispatcher_init_from(conv));
        dispatcher_cleanup();
        EXPECT(!conv_dispatcher_cleanup());
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
}

int main(int argc, char **argv)
{
    misuse(argv[1]);
    ck_names(argv[1], argv[2]);
    ck_names_in_threads(argv[1], argv[2]);
    int refused = 0;
    for (int i = 1; i < argc; i++) {
        tilewise_model *m;
        int code = tilewise_open(argv[i], &m);
        EXPECT(i > 2 ? code == 0 || code == TILEWISE_BAD_FILE : code == 0);
        refused += code != 0;
        if (!code)
            ask_all(m, 7, i > 2 ? 3 : ROUNDS, i < 3);
        pthread_t threads[THREADS];
        for (int t = 0; t < THREADS && i < 3; t++)
            EXPECT(!pthread_create(&threads[t], NULL, in_thread, m));
        for (int t = 0; t < THREADS && i < 3; t++)
            pthread_join(threads[t], NULL);
        tilewise_close(m);
    }
    printf("refused %d\n", refused);
    return 0;
}
